"""Defines the flags of `live`: its source, its outputs, and the fields of `LiveOptions`."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from slimwhisper.flags import FlagGroup, add_main_flags, add_model_flags, add_options, add_voices
from slimwhisper.live.types import LiveOptions
from slimwhisper.types import SAMPLE_RATE

FORMATS = ("text", "srt", "vtt", "json")


def add_live(commands: Any) -> None:
    """The parser of `live`."""
    p = commands.add_parser(
        "live",
        description="Transcribes speech in real time. Committed text never changes; on a terminal, "
        "the tentative text after it is dim. See docs/guides/live.md.",
    )
    p.add_argument(
        "source",
        nargs="?",
        default="-",
        metavar="SOURCE",
        help="- for standard input: WAV, or raw 16-bit PCM with --rate; a file; or with "
        "--allow_url an address (http, https, HLS, rtsp, rtp, udp) [%(default)s]",
    )
    add_main_flags(p, batches=False)
    g = FlagGroup(p, "source")
    g.add("--rate", type=int, default=SAMPLE_RATE, help="Hz of raw PCM")
    g.add("--channels", type=int, default=1, help="channels of raw PCM, interleaved")
    help = "play a file at its own speed [as fast as possible]"
    g.add("--realtime", action="store_true", default=False, help=help)
    help = "SOURCE may be an address; FFmpeg's libraries open it [refuse]"
    g.add("--allow_url", action="store_true", default=False, help=help)
    g = FlagGroup(p, "outputs")
    help = "text, subtitles, or one line of JSON for each event"
    g.add(*("-f", "--output_format"), choices=FORMATS, default="text", help=help)
    help = "write to FILE, and show text on the terminal [standard output]"
    g.add(*("-o", "--output"), type=Path, metavar="FILE", help=help)
    add_options({"live": (group := FlagGroup(p, "live"))}, LiveOptions)
    add_voices(group)
    add_model_flags(p)


def live_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `LiveOptions` that have flags, as the arguments set them."""
    rows = (row for row in fields(LiveOptions) if row.metadata["help"].section)
    chosen = {row.name: getattr(arguments, row.name) for row in rows}
    chosen["words"] |= arguments.output_format in ("srt", "vtt")  # their cues end between words
    return chosen | {"known_speakers": arguments.voices}
