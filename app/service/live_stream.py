"""A live stream, as those who feed it hold it."""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import BusyError, Limits, ModelChoice
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.live.stream import Stream, as_samples
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.types import SAMPLE_RATE

# Called on the service's thread; None: the end, after the last `UtteranceEnded` or `StreamFailed`
Listener = Callable[[LiveEvent | None], None]
# samples and their arrival time, or a call
Item = tuple[NDArray[np.float32], float] | Callable[[Stream], None]

PIECE = SAMPLE_RATE  # samples that a stream processes before the next stream's turn


class LiveStream:
    """A stream, as `Service.open_stream` returns it. Any thread may call; no call blocks.

    Calls after `finish`, or after the end, have no effect.
    """

    def __init__(
        self,
        engines: Engines,
        limits: Limits,
        changed: Condition,
        model: ModelChoice,
        options: LiveOptions,
        listener: Listener,
    ) -> None:
        """changed: held where the stream changes, notified when it has work."""
        self.model, self.options, self.listener = model, options, listener
        self._engines, self._limits, self._changed = engines, limits, changed
        self._inbox: deque[Item] = deque()
        self._appended = 0  # samples
        self._decoded = 0.0  # seconds of audio that updates have decoded, or that are silence
        self.finished = self.closed = False
        self.final_error: SlimWhisperError | None = None  # emitted last

    # -- from any thread ---------------------------------------------------------------------

    @property
    def backlog(self) -> float:
        """Seconds of audio that no update has decoded yet; silence counts until it is processed. A
        caller that can stop reading does so when it grows.
        """
        return self._appended / SAMPLE_RATE - self._decoded

    def append(self, samples: NDArray[np.float32]) -> None:
        """Queue audio: samples float32 [n] at 16 kHz, in [-1, 1], which must not change afterwards.

        Raises AudioError for anything else, BusyError if too much waits (`Limits.backlog`); then
        none of it is queued.
        """
        samples, now, limit = as_samples(samples), time.monotonic(), self._limits.backlog
        count = len(samples)
        with self._changed:
            if self.finished or self.closed:
                return
            if self.backlog + count / SAMPLE_RATE > limit:
                waiting = f"more than {limit:g} s of the stream's audio are waiting"
                raise BusyError(f"{waiting}; send audio no faster than it is spoken")
            self._inbox += ((samples[i : i + PIECE], now) for i in range(0, count, PIECE))
            self._appended += count
            self._changed.notify()

    def commit(self) -> None:
        """End the utterance now."""
        self._call(Stream.commit)

    def clear(self) -> None:
        """Discard the audio and text that are not committed."""
        self._call(Stream.clear)

    def change(self, options: LiveOptions) -> None:
        """Other options, from the next utterance on. Raises OptionError."""
        self._engines.check_stream(self.model, options)
        if options.window != self.options.window:
            raise OptionError("window: cannot change within a stream; open another stream")
        self._call(lambda stream: stream.change(options))

    def finish(self) -> None:
        """End the last utterance, then the stream; the listener gets None last."""
        with self._changed:
            self._call(Stream.finish)
            self.finished = True

    def close(self) -> None:
        """Drop the stream immediately. The listener gets no more events and no None, except one
        event that may already be on its way.
        """
        with self._changed:
            self.closed = True
            self._inbox.clear()
            self._changed.notify()

    def _call(self, method: Callable[[Stream], None]) -> None:
        with self._changed:
            if not (self.finished or self.closed):
                self._inbox.append(method)
                self._changed.notify()

    # -- for the service's thread ------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether the service's thread has work for it."""
        return bool(self._inbox or self.closed)

    def next_item(self) -> Item | None:
        """The next item of the inbox; None if it is empty."""
        with self._changed:
            return self._inbox.popleft() if self._inbox else None

    def mark_processed(self, samples: int, undecoded: float) -> None:
        """Record how many samples have been processed in all. undecoded: seconds of them that no
        update has decoded.
        """
        with self._changed:
            self._decoded = samples / SAMPLE_RATE - undecoded
