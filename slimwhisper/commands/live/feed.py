"""Pieces of audio from a source to the model: in step, at its own speed, or from a thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

if TYPE_CHECKING:  # it takes a moment to import
    from slimwhisper.live.listen import Live

Piece = NDArray[np.float32]  # [n], 16 kHz
STEP = SAMPLE_RATE // 10  # samples of a piece, at most
AHEAD = 600  # pieces that are read before they are asked for, at most
BEHIND = 5.0  # seconds from which a model is too slow
FAST = 2.0  # seconds ahead of real time from which a source is no live one
FORGETS = 1.1  # seconds a second: HLS begins with some segments at once
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
        early = began + samples / SAMPLE_RATE - time.monotonic()
        if early > 0:
            time.sleep(early)
        yield piece


class Feed:
    """The audio of a source, until its end, its error or `stop`. Iterating gives its pieces.

    `threaded`: the source is read in a thread from now on, a minute ahead at most.
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
        """End the audio here. From any thread, and from a signal's handler."""
        self._stopped = True
        self._queue.put(None)

    def __iter__(self) -> Iterator[Piece]:
        if not self.threaded:
            try:
                for piece in self._pieces:
                    if self._stopped:
                        return
                    yield piece
            except SlimWhisperError as error:
                self.error = error
            return
        while (read := self._queue.get()) is not None:  # what has been read, also after `stop`
            self._room.release()
            yield read
        self._stopped = True
        self._room.release()  # the thread may be waiting

    def pump(self, stream: "Live", update: float, late: Callable[[float], None]) -> None:
        """Give all of it to a stream, and finish that.

        update: seconds between the stream's updates. What comes faster than real time, as a file
            through a pipe, waits for them.
        late: told once by how many seconds the stream is behind a source that cannot wait.
        """
        was_level = told = False  # loading the model takes a while
        try:
            for piece in self:
                if self._ahead > FAST:
                    self._wait(stream, update)
                stream.append(piece)
                behind = stream.backlog
                was_level = was_level or behind < 2 * update
                if was_level and behind > BEHIND + update and not told and self._ahead <= FAST:
                    told = True
                    late(behind)
        finally:
            stream.finish()

    def _wait(self, stream: "Live", update: float) -> None:
        """Until the stream needs more audio; it may, too, where nothing of it changes."""
        end, backlog = time.monotonic() + PATIENCE, stream.backlog
        while backlog > update and time.monotonic() < end and not self._stopped:
            time.sleep(POLL)
            if stream.backlog != backlog:
                end, backlog = time.monotonic() + PATIENCE, stream.backlog

    def _read(self) -> None:
        """The thread."""
        before = time.monotonic()
        try:
            for piece in self._pieces:
                now = time.monotonic()
                came, passed, before = len(piece) / SAMPLE_RATE, now - before, now
                self._ahead = max(self._ahead + came - FORGETS * passed, 0.0)
                self._room.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
        except Exception as error:
            self.error = error
        self._queue.put(None)
