"""Reads pieces of audio from a source: on demand, at its own speed, or in a thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

if TYPE_CHECKING:  # it takes a moment to import
    from slimwhisper.live.listen import Live

Piece = NDArray[np.float32]  # [n], 16 kHz
STEP = SAMPLE_RATE // 10  # samples of a piece, at most
AHEAD = 600  # pieces that are read before they are needed, at most
MAX_LAG = 5.0  # seconds; with more, the model is too slow
FAST = 2.0  # seconds ahead of real time; with more, the source is not live
DECAY = 1.1  # seconds per second: HLS begins with several segments at the same time
POLL, PATIENCE = 0.01, 0.2  # seconds


def stepped(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same audio in pieces of at most 0.1 s."""
    for piece in pieces:
        for start in range(0, len(piece), STEP):
            yield piece[start : start + STEP]


def paced(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same audio at its own speed: each piece of 0.1 s at the time at which it ends."""
    began, samples = time.monotonic(), 0
    for piece in stepped(pieces):
        samples += len(piece)
        time.sleep(max(began + samples / SAMPLE_RATE - time.monotonic(), 0.0))
        yield piece


class SourceReader:
    """The audio of a source, until its end, its error or `stop`. Iterating yields its pieces.

    `threaded`: a thread reads the source, at most a minute ahead.
    """

    def __init__(self, pieces: Iterator[Piece], threaded: bool) -> None:
        self.error: Exception | None = None  # what ended the source
        self.threaded = threaded
        self._pieces = stepped(pieces)
        self._stopped = False
        self._queue: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._ahead = 0.0  # seconds by which the source has lately been faster than real time
        if threaded:
            threading.Thread(target=self._read, name="live source", daemon=True).start()

    def stop(self) -> None:
        """End the audio. May be called from any thread, and from a signal handler."""
        self._stopped = True
        self._queue.put(None)

    def __iter__(self) -> Iterator[Piece]:
        if not self.threaded:
            try:
                yield from takewhile(lambda _: not self._stopped, self._pieces)
            except SlimWhisperError as error:
                self.error = error
            return
        while (read := self._queue.get()) is not None:  # pieces that were read, also after `stop`
            self._room.release()
            yield read
        self._stopped = True
        self._room.release()  # the thread may be waiting

    def pump(self, stream: "Live", update: float, on_lag: Callable[[float], None]) -> None:
        """Append all pieces to a stream, and finish it.

        update: seconds between the stream's updates. Audio that arrives faster than real time, such
            as a file through a pipe, waits for them.
        on_lag: called once, with the seconds by which the stream is behind a live source.
        """
        was_level = warned = False  # loading the model takes a while
        try:
            for piece in self:
                if self._ahead > FAST:
                    self._wait(stream, update)
                stream.append(piece)
                lag = stream.backlog
                was_level = was_level or lag < 2 * update
                if was_level and lag > MAX_LAG + update and not warned and self._ahead <= FAST:
                    warned = True
                    on_lag(lag)
        finally:
            stream.finish()

    def _wait(self, stream: "Live", update: float) -> None:
        """Wait until the stream needs more audio, or its backlog no longer changes."""
        end, backlog = time.monotonic() + PATIENCE, stream.backlog
        while backlog > update and time.monotonic() < end and not self._stopped:
            time.sleep(POLL)
            if stream.backlog != backlog:
                end, backlog = time.monotonic() + PATIENCE, stream.backlog

    def _read(self) -> None:
        """Read the source, in the thread."""
        before = time.monotonic()
        try:
            for piece in self._pieces:
                now = time.monotonic()
                length, elapsed, before = len(piece) / SAMPLE_RATE, now - before, now
                self._ahead = max(self._ahead + length - DECAY * elapsed, 0.0)
                self._room.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
        except Exception as error:
            self.error = error
        self._queue.put(None)
