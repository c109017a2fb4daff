"""The `live` command: audio from a pipe, a file or an address, written as it is said."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from slimwhisper.audio.sources import open_source, pieces_of
from slimwhisper.audio.streams import pipe_pieces, url_pieces
from slimwhisper.commands.live.feed import Feed, Piece, paced
from slimwhisper.commands.live.flags import live_options
from slimwhisper.commands.live.outputs import opened
from slimwhisper.errors import OptionError, as_ours
from slimwhisper.flags import load_chosen
from slimwhisper.live.types import Failed, LiveEvent
from slimwhisper.storage.uris import hide, is_uri
from slimwhisper.text import shown
from slimwhisper.types import SAMPLE_RATE

if TYPE_CHECKING:
    from slimwhisper.api import SlimWhisper

STDIN = "standard input"


def run_live(arguments: argparse.Namespace) -> int:
    """Write what a source says until it ends; returns the exit status, see `cli.main`.

    Ctrl-C and SIGTERM end the source: what was said until then is still written.
    """
    a = arguments
    with ExitStack() as stack:
        pieces, threaded = _open_source(a, stack)
        tell = stack.enter_context(opened(a.output_format, a.output))
        feed = Feed(pieces, threaded)  # while the model loads, nothing is lost
        stack.callback(feed.stop)
        if a.threads:
            import torch

            torch.set_num_threads(a.threads)
        model = load_chosen(a)
        caught = stack.enter_context(_ended_by_signals(feed))
        for event in _events(model, feed, live_options(a)):
            tell(event)
            if isinstance(event, Failed):
                raise event.error
    if feed.error is not None:
        raise as_ours(feed.error)
    return 128 + caught[0] if caught else 0


def _open_source(a: argparse.Namespace, stack: ExitStack) -> tuple[Iterator[Piece], bool]:
    """The source's audio, and whether it comes by itself; `stack` closes it. Raises OptionError,
    AudioError.
    """
    of_file = a.source != "-" and not is_uri(a.source)
    if a.realtime and not of_file:
        raise OptionError("--realtime is for files; other sources have their own speed")
    if a.source != "-" and (a.rate, a.channels) != (SAMPLE_RATE, 1):
        raise OptionError("--rate and --channels are for raw PCM on standard input")
    if of_file:
        name, file = open_source(a.source)
        pieces = _floats(pieces_of(name, stack.enter_context(file), False))
        return (paced(pieces), True) if a.realtime else (pieces, False)
    if a.source != "-":
        name = shown(hide(a.source))
        if not a.allow_url:
            raise OptionError(f"{name}: is an address; add --allow_url to open it")
        return url_pieces(a.source, name), True
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError(
            f"{STDIN} is a terminal; pipe audio into it, such as "
            "arecord -f S16_LE -r 16000 -t raw | slimwhisper live"
        )
    return pipe_pieces(sys.stdin.fileno(), STDIN, a.rate, a.channels), True


def _floats(pieces: Iterator[Any]) -> Iterator[Piece]:
    """int16 [n] -> float32 [n] in [-1, 1)."""
    for piece in pieces:
        yield piece.astype("float32") / 32768


def _events(model: "SlimWhisper", feed: Feed, options: dict[str, Any]) -> Iterator[LiveEvent]:
    if not feed.threaded:
        yield from model.live(feed, **options)
        return
    live = model.live(**options)
    feeder = (live, options["update"], _warn)
    threading.Thread(target=feed.pump, args=feeder, name="live feed", daemon=True).start()
    try:
        yield from live
    finally:
        live.close()


def _warn(behind: float) -> None:
    print(
        f"slimwhisper: warning: {behind:.0f} s behind the source, so there are fewer updates; try "
        "--update 2, --window 10 or a smaller model",
        file=sys.stderr,
    )


@contextmanager
def _ended_by_signals(feed: Feed) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM ends the feed, the second one the program. Gives those caught."""
    caught: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        feed.stop()
        # unbuffered: the signal may have interrupted a write
        os.write(2, b"\nslimwhisper: writing what was said; press Ctrl-C again to stop at once\n")

    in_main = threading.current_thread() is threading.main_thread()  # others catch no signals
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
