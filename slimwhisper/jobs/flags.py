"""Defines the flags of `transcribe`: those of the whisper command, with its defaults, and more.

The decoding flags are the fields of `Options`, with the same names.
"""

import argparse
import re
from dataclasses import fields
from typing import Any, cast

from slimwhisper.audio.options import ChannelOptions
from slimwhisper.errors import OptionError
from slimwhisper.flags import (
    FlagGroup,
    StoreExplicit,
    add_main_flags,
    add_model_flags,
    add_options,
    add_voices,
    boolean,
    none_or,
    positive,
    refusing,
)
from slimwhisper.option_group import check_rows, plain_values
from slimwhisper.options import Options
from slimwhisper.outputs import FORMATS, LAYOUT, SENTENCES, SPEAKERS, LayoutOptions
from slimwhisper.speakers.choice import SpeakerOptions, named_file
from slimwhisper.subtitles import SentenceOptions

GROUPS = {  # titles, and the text below them
    "decoding": "same names and defaults as the whisper command",
    "prompting": "",
    "thresholds": "",
    "words": "the other flags require --word_timestamps True",
    "speakers": "--speakers, --known_speaker and --voices need --diarize; docs/guides/speakers.md",
}

# the whisper command's defaults, where those of its library differ
COMMAND_DEFAULTS = {"temperature": 0.0, "beam_size": 5, "best_of": 5}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}


def add_transcribe(commands: Any) -> None:
    """Add the parser of `transcribe`."""
    p = commands.add_parser("transcribe", usage="%(prog)s [flags] audio [audio ...]")
    p.add_argument(
        "audio",
        nargs="+",
        help='files, folders (searched recursively), "globs/**/*.mp3", '
        "or - to read a list of paths from standard input; or URIs such as s3://bucket/folder, "
        "manifests (.jsonl), tables (.parquet), archives (.tar)",
    )
    add_main_flags(p, batches=True)
    help = "False: compute in float32 unless --dtype is given [%(default)s]"
    p.add_argument("--fp16", type=boolean, default=True, help=help)
    p.add_argument(
        "--loaders",
        type=int,
        help="processes that decode files; 0: threads of this process "
        "[up to 8 for a folder, pattern or list, on a GPU or 8 cores; else 0]",
    )
    help = "column of a table, or key of a manifest, with the recordings [common names]"
    p.add_argument("--audio_column", help=help)
    _add_outputs(p)
    _add_engine(p)
    add_model_flags(p)
    _add_decoding(p)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    about = "a folder job keeps a journal in --output_dir and resumes from it"
    g = FlagGroup(parser, "outputs", about)
    g.add("-o", "--output_dir", default=".", help="folder to write to, or its URI")
    g.add(
        "-f",
        "--output_format",
        default="all",
        choices=(*FORMATS, "all", "parquet"),
        help="txt, vtt, srt, tsv, json, lrc, ass or rttm; all: the first five, and rttm with "
        "--diarize or --channels; parquet: one table of all recordings",
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
    help = "write a page about the whole job: its files, failures and segments to check"
    g.add("--report", metavar="FILE.html", help=help)
    help = "keep a journal [True for folders, patterns in quotes, and lists]"
    g.add("--journal", type=none_or(boolean), help=help)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    about = "those after --engine need --engine ray; docs/guides/scale.md"
    g = FlagGroup(parser, "many GPUs and hosts", about)
    g.add(
        "--shard",
        type=shard,
        metavar="I/N",
        help="only the I-th of N parts of the recordings, 1/N to N/N, for an array of tasks with "
        "the same inputs and outputs; a hash of its output's name chooses a recording's part",
    )
    help = "ray: workers of Ray, on all GPUs of this host or on a cluster"
    g.add("--engine", choices=("local", "ray"), default="local", help=help)
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


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option, and those that only the command has."""
    groups = {name: FlagGroup(parser, name, group) for name, group in GROUPS.items()}
    add_options(groups, Options, COMMAND_DEFAULTS, action=StoreExplicit)
    groups["decoding"].add(
        "--temperature_increment_on_fallback",
        type=none_or(float),
        default=0.2,
        help="step to the next temperature, up to 1, when a window fails a threshold; "
        "None disables the fallback",
    )
    add_options(groups, LayoutOptions)
    groups["speakers"].add(
        "--known_speaker",
        dest="known_speakers",
        metavar="NAME=FILE",
        type=refusing(named_file),
        action=_Collect,
        default=(),
        help="name of a speaker, and a recording of only this voice; repeat the flag for others "
        "[none]",
    )
    add_voices(groups["speakers"], dest="known_speakers", action=_Collect)


class _Collect(argparse.Action):
    """Adds the values to a tuple."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), *values))


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding options from the parsed arguments: those that the user gave, and the command's
    defaults that differ from the library's. Raises OptionError.
    """
    explicit = getattr(arguments, "explicit", ())
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in DEFAULTS and (name in explicit or value != DEFAULTS[name])
    }
    step = arguments.temperature_increment_on_fallback
    options["temperature"] = temperatures(arguments.temperature, step)
    return options


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The same; raises OptionError if no model can follow them, before one is loaded."""
    meant, any_model = plain_values(options), cast(Any, None)
    for group in (SpeakerOptions, ChannelOptions, SentenceOptions, Options):
        group.prepare(meant, {}, any_model)
    check_rows(Options(**meant))
    return options


def changed(options: dict[str, Any]) -> dict[str, Any]:
    """The decoding options that differ from the library's defaults."""
    return {name: value for name, value in options.items() if value != DEFAULTS[name]}


def temperatures(first: float, increment: float | None) -> float | tuple[float, ...]:
    """The temperatures to try in turn, bit for bit those of the whisper command."""
    if increment is None or not first >= 0:  # which is refused with all other options
        return first
    if not 0.01 <= increment <= 10:
        what = f"{increment} is not a number from 0.01 to 10; give one, or None for no fallback"
        raise OptionError(f"--temperature_increment_on_fallback {what}")
    import numpy as np

    ladder = tuple(np.arange(min(first, 2.0), 1.0 + 1e-6, increment).tolist())
    if not ladder:
        what = f"--temperature {first} is more than 1, so nothing is left to fall back to"
        raise OptionError(f"{what}; add --temperature_increment_on_fallback None")
    return ladder


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The subtitle options that differ from their defaults."""
    chosen = {name: getattr(arguments, name) for name in (*LAYOUT, SENTENCES, *SPEAKERS)}
    return {name: value for name, value in chosen.items() if not (value is None or value is False)}


def dtype_of(arguments: argparse.Namespace) -> str | None:
    """The dtype that --dtype or --fp16 chooses; None: the default of the device."""
    chosen: str | None = arguments.dtype
    return "float32" if chosen is None and not arguments.fp16 else chosen
