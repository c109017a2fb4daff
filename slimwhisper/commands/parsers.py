"""Defines the flags of `serve` and of the smaller commands; see also `jobs/flags.py`."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slimwhisper.flags import (
    ADAPTER,
    MODEL,
    MODEL_DIR,
    THREADS,
    FlagGroup,
    add_main_flags,
    add_model_flags,
    add_options,
    add_voices,
    boolean,
    count,
    positive,
)
from slimwhisper.options import Options
from slimwhisper.outputs import formats_for
from slimwhisper.types import DTYPES


def add_align(commands: Any) -> None:
    """The parser of `align`."""
    p = commands.add_parser(
        "align",
        description="Writes the lines of a text, or the cues of a subtitle file, with their times. "
        "Lists lines that are not in the audio, and speech that is not in the text.",
    )
    p.add_argument("audio", metavar="AUDIO", help="recording of any length; - for standard input")
    p.add_argument("text", metavar="TEXT", help=".txt, .srt, .vtt or .lrc, whose times are ignored")
    help = "of the file NAME.FORMAT, with the recording's name [srt]"
    formats = ["all", *formats_for(speakers=False)]
    p.add_argument("-f", "--output_format", choices=formats, default="srt", help=help)
    p.add_argument("-o", "--output_dir", default=".", help="folder to write it to [.]")
    p.add_argument("--language", help="code or name [detected]")
    help = "align with the readable part of a truncated file [False]"
    p.add_argument("--allow_truncated", type=boolean, default=False, help=help)
    add_main_flags(p, batches=False)
    add_model_flags(p)


def add_models(commands: Any) -> None:
    """The parser of `models`."""
    p = commands.add_parser(
        "models", description="Lists the names that --model knows. Nothing is downloaded."
    )
    p.add_argument("--model_dir", **MODEL_DIR)
    p.add_argument("--json", action="store_true", help="print JSON")


def add_convert(commands: Any) -> None:
    """The parser of `convert`."""
    p = commands.add_parser(
        "convert",
        description="Writes a model as a .pt file for openai-whisper, or as a folder for "
        "transformers with tokenizer and settings; reads it back and compares.",
    )
    p.add_argument("input", metavar="IN", help=f"{MODEL}; also faster-whisper's and whisper.cpp's")
    p.add_argument("output", metavar="OUT", help="NAME.pt, or a folder")
    p.add_argument("--dtype", choices=DTYPES, help="of the weights [as they are]")
    p.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    p.add_argument("--adapter", **ADAPTER)
    p.add_argument("--model_dir", **MODEL_DIR)


def add_doctor(commands: Any) -> None:
    """The parser of `doctor`."""
    p = commands.add_parser(
        "doctor", description="Checks the installation, and says how to fix it."
    )
    p.add_argument("--threads", **THREADS)
    p.add_argument("--json", action="store_true", help="print JSON")


JOB_DEFAULTS = ("speech_only", "drop")  # options of all recordings, unless a request has its own


def secret(text: str) -> str:
    """A key or a login; for "@FILE", the file's text, which process lists do not show."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error}") from None
    if not text:
        raise argparse.ArgumentTypeError("is empty; unset it if anyone may use the server")
    return text


def api_key(text: str) -> str:
    """A key that is valid in an HTTP header."""
    key = secret(text)
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise argparse.ArgumentTypeError("use ASCII letters, digits and punctuation, no spaces")
    return key


def login(text: str) -> tuple[str, str]:
    """A user and a password from user:password."""
    user, colon, password = secret(text).partition(":")
    if not (user and colon and password):
        raise argparse.ArgumentTypeError("give user:password")
    return user, password


def host_name(text: str) -> str:
    """A host's name or address as browsers send it, without a port."""
    if not text or (set(text) & set("/:*@ ") and not text.startswith("[")):
        raise argparse.ArgumentTypeError(f"{text!r}: give only a name, such as speech.example.com")
    return text.strip("[]").lower()


def origin(text: str) -> str:
    """A site or an application as browsers name it in Origin, or "*", all of them."""
    if not re.fullmatch(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/*@\s]+", text):
        message = f"{text!r}: give scheme, host and optional port, such as https://app.example.com"
        raise argparse.ArgumentTypeError(message)
    return text.lower()


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def duration(text: str) -> float:
    """Seconds, from a number of seconds, or of another unit, such as 90m, 24h or 7d."""
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:], 0)
    return seconds(text[:-1]) * factor if factor else seconds(text)


# by group: a flag's name, type, default and help
NUMBERS: dict[str, tuple[tuple[str, Callable[[str], Any], float | None, str], ...]] = {
    "limits": (
        ("max_upload", positive, 1024, "MB per file"),
        ("max_minutes", positive, 240, "minutes per recording"),
        ("queue", positive, 256, "requests at a time"),
        ("timeout", seconds, 3600.0, "seconds per request [3600]"),
        ("results", str, None, "folder of jobs in the background, and of their results [none]"),
        ("keep_results", duration, 86_400.0, "time for which results are kept [24h]"),
        ("patience", seconds, 30.0, "seconds to finish requests at exit [30]"),
    ),
    "live streams": (
        ("streams", count, 64, "at a time; 0: none"),
        ("update", seconds, 1.0, "seconds of audio between updates [1]"),
        ("session_minutes", positive, 60, "minutes of a realtime session"),
        ("idle_seconds", seconds, 300.0, "seconds without audio that end a realtime session [300]"),
        ("wyoming", positive, None, "port for the Wyoming protocol, which has no key [not served]"),
        (
            "live_window",
            seconds,
            None,
            "seconds of audio that an update encodes; fewer are cheaper, but not exact "
            "[the model's window]",
        ),
    ),
}


ALLOWED = {  # the help of flags that may be repeated
    "host": "a host name by which clients or a proxy reach the server; may be repeated "
    "[without a key on 127.0.0.1: only this machine's; else any]",
    "origin": "a site whose pages may use the API in browsers; '*': all with the key; may repeat",
    "webhook": "a host whose address may be called when a job in the background ends; may repeat",
}


def add_serve(commands: Any) -> None:
    """The parser of `serve`."""
    p = commands.add_parser(
        "serve",
        description="One server with one model: all users' requests share its batch. "
        "See docs/guides/serving.md.",
    )
    add_main_flags(p, batches=True)
    help = "users may choose models that are not installed yet"
    p.add_argument("--allow_download", action="store_true", help=help)
    p.add_argument("--strict_models", action="store_true", help="refuse names of other models")
    help = "idle seconds before the model is unloaded [never]"
    p.add_argument("--unload_after", type=seconds, help=help)
    add_model_flags(p)
    g = p.add_argument_group("access")
    g.add_argument("--host", default="127.0.0.1", help="address to listen on [%(default)s]")
    g.add_argument("--port", type=int, default=7860, help="[%(default)s]")
    g.add_argument("--root_path", default="", help="its path behind a proxy")
    for name, content in (("cert", "with the chain of certificates"), ("key", "with its key")):
        help = f"PEM file {content}, to serve https and wss [http and ws]"
        g.add_argument(f"--tls_{name}", metavar="FILE", help=help)

    for name, secrecy, use in (
        ("auth", login, "user:password, for page and API"),
        ("api_key", api_key, "for the API, and the page's password"),
    ):
        variable = f"SLIMWHISPER_{name.upper()}"
        help = f"{use}; @FILE reads it from a file [{variable}, else none]"
        g.add_argument(f"--{name}", type=secrecy, default=os.environ.get(variable), help=help)
    for name, help in ALLOWED.items():
        read, value = (origin, "URL") if name == "origin" else (host_name, "NAME")
        option = f"--allow_{name}"
        g.add_argument(option, action="append", default=[], type=read, metavar=value, help=help)
    g.add_argument("--no_page", dest="page", action="store_false", help="serve only the API")
    group = FlagGroup(p, "texts", "of recordings; live streams find speech by themselves")
    sections = {"decoding": group, "thresholds": group}
    defaults = {"speech_only": True, "drop": ("invented", "repeats")}
    add_options(sections, Options, defaults, names=JOB_DEFAULTS)
    add_voices(FlagGroup(p, "speakers", "where they are identified"))
    for title, rows in NUMBERS.items():
        group = FlagGroup(p, title)
        for name, kind, default, help in rows:
            group.add(f"--{name}", type=kind, default=default, help=help)
