"""A live stream as its caller holds it: what comes waits here for the service's thread."""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from slimwhisper.app.service.jobs import BusyError, ModelChoice
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.live.stream import Stream, as_samples
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.types import SAMPLE_RATE

# Called on the service's thread; None: the end, after the last `Ended` or after `Failed`
Listener = Callable[[LiveEvent | None], None]
# samples and the time they came at, or a call
Item = tuple[NDArray[np.float32], float] | Callable[[Stream], None]

PIECE = SAMPLE_RATE  # samples that a stream takes in before it is the others' turn


class LiveStream:
    """A stream, as `Service.open_stream` returns it. Any thread may call; nothing waits.

    Calls after `finish`, or after the end, have no effect.
    """

    def __init__(
        self,
        model: ModelChoice,
        options: LiveOptions,
        user: str,
        listener: Listener,
        changed: Condition,
        check: Callable[[ModelChoice, LiveOptions], None],
        most: float,
    ) -> None:
        """changed: notified when it waits for the service's thread. check: raises OptionError for
        options that cannot work. most: seconds of audio that may wait.
        """
        self.model, self.options, self.user, self.listener = model, options, user, listener
        self._changed, self._check, self._most = changed, check, most
        self._inbox: deque[Item] = deque()  # what is not taken yet
        self._appended = self._judged = 0  # samples that came, and those that were judged
        self._unknown = 0.0  # seconds of those that were judged and no update has known
        self.finished = self.closed = False
        self.ending: SlimWhisperError | None = None  # what is told last

    # -- from any thread ---------------------------------------------------------------------

    @property
    def backlog(self) -> float:
        """Seconds of audio that no update has known yet; silence counts until it is taken in. A
        caller that can stop reading does so when it grows.
        """
        return (self._appended - self._judged) / SAMPLE_RATE + self._unknown

    def append(self, samples: NDArray[np.float32]) -> None:
        """More audio: samples float32 [n] at 16 kHz, in [-1, 1], which must not change afterwards.

        Raises AudioError for others, BusyError if too much waits (`Limits.backlog`); nothing of it
        is taken then.
        """
        samples, now = as_samples(samples), time.monotonic()
        count = len(samples)
        with self._changed:
            if self.finished or self.closed:
                return
            if self.backlog + count / SAMPLE_RATE > self._most:
                waiting = f"more than {self._most:g} s of the stream's audio wait"
                raise BusyError(f"{waiting}; send it as fast as it is spoken")
            self._inbox += ((samples[i : i + PIECE], now) for i in range(0, count, PIECE))
            self._appended += count
            self._changed.notify()

    def commit(self) -> None:
        """End the utterance now."""
        self._call(Stream.commit)

    def clear(self) -> None:
        """Forget what is not committed."""
        self._call(Stream.clear)

    def change(self, options: LiveOptions) -> None:
        """Other options, from the next utterance on. Raises OptionError."""
        self._check(self.model, options)
        if options.window != self.options.window:
            raise OptionError("window: it cannot change within a stream; open another one")
        self._call(lambda stream: stream.change(options))

    def finish(self) -> None:
        """No more audio: the last utterance ends, then the stream; the listener gets None last."""
        with self._changed:
            self._call(Stream.finish)
            self.finished = True

    def close(self) -> None:
        """Drop the stream at once. The listener gets no more events, and no None; one event may be
        on its way.
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
    def waits(self) -> bool:
        """Whether the service's thread has something to do for it."""
        return bool(self._inbox or self.closed)

    def take(self) -> Item | None:
        """The next of what came; None: nothing did."""
        with self._changed:
            return self._inbox.popleft() if self._inbox else None

    def judged(self, samples: int, unknown: float) -> None:
        """So many of all samples were judged. unknown: seconds of them that no update has known."""
        with self._changed:
            self._unknown = unknown  # first: the backlog is never told too small
            self._judged = samples
