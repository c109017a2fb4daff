"""The flags of the `live` command: the fields of `LiveOptions` by their names, and its source."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from slimwhisper.flags import MODEL, FlagGroup, add_model_flags, boolean, none_or
from slimwhisper.live.types import POLICIES, LiveOptions
from slimwhisper.types import SAMPLE_RATE

FORMATS = ("text", "srt", "vtt", "json")
# those that are flags of this command; the others are for programs
OPTIONS = (
    *("task", "language", "prompt", "hotwords", "policy", "update", "first", "words"),
    *("vad_threshold", "silence_duration_ms", "window"),
)
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(LiveOptions)}


def add_live(commands: Any) -> None:
    """The parser of `live`."""
    p = commands.add_parser(
        "live",
        help="show what a microphone, a pipe or a stream says, while it says it",
        description="Writes what is said as it is said. Text that is committed never changes; on a "
        "terminal what follows it, still tentative, is dim. See docs/live.md.",
    )
    p.add_argument(
        "source",
        nargs="?",
        default="-",
        metavar="SOURCE",
        help="- for standard input: WAV, or raw 16-bit PCM with --rate; a file; or with "
        "--allow_url an address (http, https, HLS, rtsp, rtp, udp) [%(default)s]",
    )
    p.add_argument("--model", default="turbo", help=f"{MODEL} [%(default)s]")
    p.add_argument("--threads", type=int, default=0, help="number of CPU threads [0: all cores]")
    g = FlagGroup(p, "source")
    g.add("--rate", type=int, default=SAMPLE_RATE, help="Hz of raw PCM")
    g.add("--channels", type=int, default=1, help="channels of raw PCM, interleaved")
    g.add(
        *("--realtime",),
        action="store_true",
        default=False,
        help="play a file at its own speed [as fast as possible]",
    )
    g.add(
        *("--allow_url", "--allow-url"),
        action="store_true",
        default=False,
        help="SOURCE may be an address; FFmpeg's libraries open it [refuse]",
    )
    g = FlagGroup(p, "outputs")
    g.add(
        *("-f", "--output_format"),
        choices=FORMATS,
        default="text",
        help="text, subtitles, or one line of JSON for each event",
    )
    g.add(
        *("-o", "--output"),
        type=Path,
        metavar="FILE",
        help="write to FILE, and show text on the terminal [standard output]",
    )
    _add_options(p)
    add_model_flags(p)


def _add_options(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "live")

    def option(name: str, kind: Any, help: str, **rest: Any) -> None:
        g.add(f"--{name}", type=kind, default=DEFAULTS[name], help=help, **rest)

    option(
        "policy",
        str,
        "when text is committed: two updates agree on it, or it does not attend to new audio",
        choices=POLICIES,
    )
    option("update", float, "seconds of new audio between two updates")
    option("first", float, "seconds of speech before the first update of an utterance")
    option("words", boolean, "when each word is spoken")
    option("window", none_or(float), "seconds that an update encodes; fewer are faster [30]")
    option("vad_threshold", float, "probability from which a sound is speech")
    option("silence_duration_ms", int, "milliseconds of silence that end an utterance")
    option("language", none_or(str), "language code or name [detected for each utterance]")
    option(
        "task", str, "translate into English, or transcribe", choices=("transcribe", "translate")
    )
    option("prompt", none_or(str), "text that comes before the first utterance")
    option("hotwords", none_or(str), "words to expect")


def live_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `LiveOptions` that the flags set."""
    return {name: getattr(arguments, name) for name in OPTIONS}
