"""Runs the `live` command: transcribes audio from a pipe, a file or an address in real time."""

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from slimwhisper.audio.samples import ReadOptions, open_source, pieces_of
from slimwhisper.commands.live.flags import live_options
from slimwhisper.commands.live.outputs import open_outputs
from slimwhisper.commands.live.source_reader import Piece, SourceReader, paced
from slimwhisper.commands.live.streams import pipe_pieces, url_pieces
from slimwhisper.errors import OptionError, wrap_unexpected
from slimwhisper.files import is_uri, redact
from slimwhisper.flags import load_chosen, signals_to
from slimwhisper.live.types import LiveEvent, StreamFailed
from slimwhisper.text import escape_line
from slimwhisper.types import SAMPLE_RATE

if TYPE_CHECKING:
    from slimwhisper.api import SlimWhisper

STDIN = "standard input"


def run_live(arguments: argparse.Namespace) -> int:
    """Transcribe a source until it ends; returns the exit status, see `cli.main`.

    Ctrl-C and SIGTERM end the source; the speech until then is still written.
    """
    a = arguments
    with ExitStack() as stack:
        pieces, threaded = _open_source(a, stack)
        emit = stack.enter_context(open_outputs(a.output_format, a.output, a.diarize))
        feed = SourceReader(pieces, threaded)  # while the model loads, nothing is lost
        stack.callback(feed.stop)
        model = load_chosen(a)
        caught = stack.enter_context(_ended_by_signals(feed))
        for event in _events(model, feed, live_options(a)):
            emit(event)
            if isinstance(event, StreamFailed):
                raise event.error
    if feed.error is not None:
        raise wrap_unexpected(feed.error)
    return 128 + caught[0] if caught else 0


def _open_source(a: argparse.Namespace, stack: ExitStack) -> tuple[Iterator[Piece], bool]:
    """The source's audio, and whether it arrives at its own speed; `stack` closes it. Raises
    OptionError, AudioError.
    """
    of_file = a.source != "-" and not is_uri(a.source)
    if a.realtime and not of_file:
        raise OptionError("--realtime is only for files; drop it")
    if a.source != "-" and (a.rate, a.channels) != (SAMPLE_RATE, 1):
        raise OptionError("--rate and --channels are only for raw PCM on standard input; drop them")
    if of_file:
        name, file = open_source(a.source)
        how = ReadOptions(allow_truncated=None)  # no flag offers it
        samples: Iterator[Any] = pieces_of(name, stack.enter_context(file), how)  # int16 [n]
        pieces = (piece.astype("float32") / 32768 for piece in samples)
        return (paced(pieces), True) if a.realtime else (pieces, False)
    if a.source != "-":
        name = escape_line(redact(a.source))
        if not a.allow_url:
            raise OptionError(f"{name}: is an address; add --allow_url to open it")
        return url_pieces(a.source, name), True
    if sys.stdin is None or sys.stdin.isatty():
        example = "arecord -f S16_LE -r 16000 -t raw | slimwhisper live"
        raise OptionError(f"{STDIN} is a terminal or closed; pipe audio into it, such as {example}")
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(sys.stdin.fileno(), os.O_BINARY)
    return pipe_pieces(sys.stdin.fileno(), STDIN, a.rate, a.channels), True


def _events(model: "SlimWhisper", feed: SourceReader, how: dict[str, Any]) -> Iterator[LiveEvent]:
    if not feed.threaded:
        yield from model.live(feed, **how)
        return
    with closing(model.live(**how)) as live:
        feeder = (live, how["update"], _warn)
        threading.Thread(target=feed.pump, args=feeder, name="live feed", daemon=True).start()
        yield from live


def _warn(lag: float) -> None:
    remedy = "try --update 2, --window 10 or a smaller model"
    print(f"slimwhisper: warning: {lag:.0f} s behind the source; {remedy}", file=sys.stderr)


@contextmanager
def _ended_by_signals(feed: SourceReader) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM ends the feed, the second one the program. Yields the caught."""
    caught: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        feed.stop()
        # unbuffered: the signal may have interrupted a write
        with suppress(OSError):
            os.write(2, b"\nslimwhisper: writing the rest; press Ctrl-C again to stop now\n")

    with signals_to(handle):
        yield caught
