"""Defines the flags of `transcribe`: those of the whisper command, with its defaults, and more."""

import argparse
import re
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.flags import FlagGroup, add_main_flags, add_model_flags, boolean, none_or, positive
from slimwhisper.jobs.decoding_flags import add_decoding
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.outputs.layout import LAYOUT, SENTENCES, SPEAKERS


def add_transcribe(commands: Any) -> None:
    """Add the parser of `transcribe`."""
    p = commands.add_parser(
        "transcribe",
        help="transcribe audio and video files to text",
        usage="%(prog)s [flags] audio [audio ...]",
    )
    p.add_argument(
        "audio",
        nargs="+",
        help='files, folders (searched recursively), "globs/**/*.mp3", '
        "or - to read a list of paths from standard input; or URIs such as s3://bucket/folder, "
        "manifests (.jsonl), tables (.parquet), archives (.tar)",
    )
    add_main_flags(p, batches=True)
    p.add_argument(
        "--fp16",
        type=boolean,
        default=True,
        help="False: compute in float32 unless --dtype is given [%(default)s]",
    )
    p.add_argument(
        "--loaders",
        type=int,
        help="processes that decode files; 0: threads of this process "
        "[up to 8 for a folder, pattern or list, on a GPU or 8 cores; else 0]",
    )
    p.add_argument(
        "--audio_column",
        help="column of a table, or key of a manifest, with the recordings [common names]",
    )
    _add_outputs(p)
    _add_engine(p)
    add_model_flags(p)
    add_decoding(p)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(
        parser, "outputs", "a folder job keeps a journal in --output_dir and resumes from it"
    )
    g.add("-o", "--output_dir", default=".", help="folder to write to, or its URI")
    g.add(
        "-f",
        "--output_format",
        default="all",
        choices=(*FORMATS, "all", "parquet"),
        help="file format; all: txt, vtt, srt, tsv, json, and rttm with --diarize or --channels; "
        "parquet: one table of all recordings",
    )
    g.add("--verbose", type=boolean, default=True, help="print each segment")
    g.add("--log_json", type=boolean, default=False, help="print only JSON lines")
    for name, help in (
        ("skip_existing", "skip recordings whose outputs already exist"),
        ("overwrite", "transcribe everything again, ignoring the journal"),
        ("retry_failed", "retry files that failed in an earlier run"),
        ("fail_fast", "stop at the first failure"),
        ("allow_truncated", "transcribe the readable part of truncated files"),
    ):
        g.add(f"--{name}", type=boolean, default=False, help=help)
    g.add(
        "--report",
        metavar="FILE.html",
        help="write a page about the whole job: its files, failures and segments to check",
    )
    g.add(
        "--journal",
        type=none_or(boolean),
        help="keep a journal [True for folders, globs and lists]",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    about = "those after --engine need --engine ray; docs/scale.md"
    g = FlagGroup(parser, "many GPUs and hosts", about)
    g.add(
        "--shard",
        type=shard,
        metavar="I/N",
        help="only the I-th of N parts of the recordings, 1/N to N/N, for an array of tasks with "
        "the same inputs and outputs; a hash of its output's name chooses a recording's part",
    )
    g.add(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: workers of Ray, on all GPUs of this host or on a cluster",
    )
    for name, kind, help in (
        ("ray_address", str, "of a cluster to join, such as auto [starts Ray on this host]"),
        ("workers", positive, "number of workers [one for each GPU; on CPUs one for each host]"),
        ("devices", str, "all, or the GPUs of this host to use, such as 0,2 [all]"),
    ):
        g.add(f"--{name}", type=kind, help=help)


def shard(text: str) -> tuple[int, int]:
    """A part and the number of parts, such as 3/8."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is none of N parts, which are 1/N to N/N")
    return int(match[1]), int(match[2])


def check_engine(arguments: argparse.Namespace) -> None:
    """Raise OptionError unless the flags for Ray fit together."""
    a = arguments
    ray_flags = [n for n in ("ray_address", "workers", "devices") if getattr(a, n) is not None]
    if ray_flags and a.engine != "ray":
        raise OptionError(f"--{ray_flags[0]} needs --engine ray; add it")
    if a.devices is None or a.devices == "all":
        return
    if a.ray_address is not None:
        raise OptionError("--devices is for this host; drop it, as a cluster uses all its GPUs")
    if not all(part.isascii() and part.isdigit() for part in a.devices.split(",")):
        raise OptionError(f"--devices {a.devices!r} is not valid; give all, or numbers such as 0,2")


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The subtitle options that differ from their defaults."""
    names = (*LAYOUT, SENTENCES, *SPEAKERS)
    chosen = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in chosen.items() if value not in (None, False)}


def dtype_of(arguments: argparse.Namespace) -> str | None:
    """The dtype that --dtype or --fp16 chooses; None: the default of the device."""
    chosen: str | None = arguments.dtype
    return "float32" if chosen is None and not arguments.fp16 else chosen
