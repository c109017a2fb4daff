"""Pieces of audio from a source to the model: in step, at its own speed, or from a thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

Piece = NDArray[np.float32]  # [n], 16 kHz
STEP = SAMPLE_RATE // 10  # samples of a piece, at most
AHEAD = 600  # pieces that are read before they are asked for, at most
MOST_JOINED = 50  # pieces
BEHIND = 5.0  # seconds late from which the model is too slow


def stepped(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same audio in pieces of at most 0.1 s."""
    for piece in pieces:
        for start in range(0, len(piece), STEP):
            yield piece[start : start + STEP]


def paced(
    pieces: Iterator[Piece],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Piece]:
    """The same audio at its own speed: each piece of 0.1 s at the time at which it ends."""
    began, samples = clock(), 0
    for piece in stepped(pieces):
        samples += len(piece)
        early = began + samples / SAMPLE_RATE - clock()
        if early > 0:
            sleep(early)
        yield piece


class Feed:
    """The audio of a source, until its end, its error or `stop`.

    `threaded`: the source is read in a thread from now on, a minute ahead at most. What has come
    while the model was at work is then one piece, so that a slow model has fewer updates, not a
    queue of them. What comes faster than real time, as a file through a pipe, is not joined.
    """

    def __init__(
        self, pieces: Iterator[Piece], threaded: bool, late: Callable[[float], None] | None = None
    ) -> None:
        """late: told once by how many seconds the model is behind its source."""
        self.stopped = False
        self.error: Exception | None = None  # what ended the source
        self.seconds = 0.0  # given out so far
        self._pieces, self._threaded, self._late = stepped(pieces), threaded, late
        self._queue: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._came = 0.0  # seconds that have arrived
        self._began = 0.0  # when the first piece came
        self._was_level = False  # it was not behind, once: loading a model takes a while
        if threaded:
            threading.Thread(target=self._read, name="live source", daemon=True).start()

    def stop(self) -> None:
        """End the audio here. From any thread, and from a signal's handler."""
        self.stopped = True
        self._queue.put(None)

    def __iter__(self) -> Iterator[Piece]:
        try:
            for piece in self._joined() if self._threaded else self._pieces:
                if self.stopped and not self._threaded:
                    return  # what a thread has read is still given out
                self.seconds += len(piece) / SAMPLE_RATE
                yield piece
        except SlimWhisperError as error:
            self.error = error
        finally:
            self.stopped = True
            self._room.release()  # the thread may be waiting

    def _joined(self) -> Iterator[Piece]:
        last: Piece | None = None
        while (last := self._queue.get()) is not None:
            waiting = [last]
            with suppress(queue.Empty):
                while last is not None and len(waiting) < MOST_JOINED and self._is_live():
                    last = self._queue.get_nowait()
                    waiting += [] if last is None else [last]
            self._room.release(len(waiting))
            yield np.concatenate(waiting)
            if last is None:
                return
            self._tell()

    def _read(self) -> None:
        """The thread."""
        try:
            for piece in self._pieces:
                self._room.acquire()
                if self.stopped:
                    return
                self._began = self._began or time.monotonic()
                self._came += len(piece) / SAMPLE_RATE
                self._queue.put(piece)
        except Exception as error:
            self.error = error
        self._queue.put(None)

    def _is_live(self) -> bool:
        """Whether the source does not come faster than real time."""
        return self._came < time.monotonic() - self._began + BEHIND

    def _tell(self) -> None:
        behind = self._came - self.seconds
        self._was_level = self._was_level or behind < 1
        if self._late is not None and self._was_level and behind > BEHIND and self._is_live():
            self._late(behind)
            self._late = None
