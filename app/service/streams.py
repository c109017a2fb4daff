"""Live streams: what their callers hold, and what the service's thread does for them."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from slimwhisper.app.service.counts import Counts
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import BusyError, Limits, ModelChoice
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.live.setup import Setup, check
from slimwhisper.live.stream import Stream, as_samples, hear_together
from slimwhisper.live.types import Failed, LiveEvent, LiveOptions, Text
from slimwhisper.live.updates import Updates
from slimwhisper.live.warming import load_parts
from slimwhisper.types import SAMPLE_RATE

logger = logging.getLogger("slimwhisper.serve")

# Called on the service's thread; None: the end, after the last `Ended` or after `Failed`
Listener = Callable[[LiveEvent | None], None]

PIECE = SAMPLE_RATE  # samples that a stream takes in before it is the others' turn
LEAST = PIECE // 100  # what a call, or a shorter piece, counts as
ARRIVALS = 4096  # pieces whose arrival is remembered: of 20 ms each, 80 s


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
        streams: "Streams",
    ) -> None:
        self.model, self.options, self.user, self.listener = model, options, user, listener
        self._streams, self._changed = streams, streams.changed
        # what came and is not taken in: samples and the time they came at, or calls
        self._inbox: deque[tuple[NDArray[np.float32], float] | Callable[[Stream], None]] = deque()
        self._appended = self._judged = 0  # samples that came, and those that the stream has judged
        self.finished = self.closed = False
        # of the service's thread
        self.stream: Stream | None = None  # once its model is loaded
        self.updates: Updates | None = None  # of its engine, until it ends
        self._taken = 0  # samples that the stream was handed
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=ARRIVALS)  # seconds taken, when
        self._stream_backlog = 0.0  # that others may read
        self._counted = 0, 0  # updates, merged ones
        self.ending: SlimWhisperError | None = None  # what is told last

    # -- from any thread ---------------------------------------------------------------------

    @property
    def backlog(self) -> float:
        """Seconds of audio that no update has known yet; silence counts until it is taken in. A
        caller that can stop reading does so when it grows.
        """
        return (self._appended - self._judged) / SAMPLE_RATE + self._stream_backlog

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
            most = self._streams.limits.backlog
            if self.backlog + count / SAMPLE_RATE > most:
                raise BusyError(
                    f"more than {most:g} s of the stream's audio wait; send it as fast as it is "
                    "spoken"
                )
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
        self._streams.check(self.model, options)
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

    # -- on the service's thread -------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether the service's thread has something to do for it."""
        return bool(self._inbox or self.closed or self.stream is None)

    def take_in(self) -> None:
        """Hand the stream what has come, up to `PIECE` samples."""
        assert self.stream is not None
        room = PIECE
        while room > 0:
            with self._changed:
                if not self._inbox:
                    break
                item = self._inbox.popleft()
            room -= LEAST
            if callable(item):
                item(self.stream)
                continue
            samples, when = item
            self.stream.take(samples)
            room -= max(len(samples) - LEAST, 0)
            self._taken += len(samples)
            self._arrivals.append((self._taken / SAMPLE_RATE, when))

    def events(self) -> list[LiveEvent]:
        """What the stream has to tell, now that it has judged what it was handed."""
        assert self.stream is not None
        with self._changed:
            self._stream_backlog = self.stream.backlog  # first: together they are never too small
            self._judged = self._taken
        return self.stream.events()

    def count(self, counts: Counts) -> None:
        """Add the updates that are new."""
        if self.stream is None:
            return
        counts.updates += self.stream.updates - self._counted[0]
        counts.merged += self.stream.merged - self._counted[1]
        self._counted = self.stream.updates, self.stream.merged

    def arrival(self, seconds: float) -> float:
        """When the audio up to `seconds` of the stream had come, by time.monotonic(); `seconds`
        never decreases from call to call.
        """
        while len(self._arrivals) > 1 and self._arrivals[0][0] < seconds:
            self._arrivals.popleft()
        return self._arrivals[0][1]


class Streams:
    """The live streams of a service."""

    def __init__(
        self, engines: Engines, limits: Limits, counts: Counts, changed: Condition
    ) -> None:
        """changed: held where `open` changes, notified when a stream waits."""
        self._engines, self.limits, self._counts, self.changed = engines, limits, counts, changed
        self.open: dict[LiveStream, None] = {}
        self._expected: LiveOptions | None = None  # of streams, to be made ready for

    # -- from any thread ---------------------------------------------------------------------

    def check(self, model: ModelChoice, options: LiveOptions) -> None:
        """Raise OptionError for what cannot work; without the model if it is not loaded."""
        check(options)
        loaded = self._engines.model
        if loaded is not None and self._engines.loaded == model:
            window = options.window
            network = (loaded if window is None else loaded.shortened(window)).network
            Setup.of(network.dims, network.vocabulary, options, network.settings)

    def warm_up(self, options: LiveOptions) -> None:
        """Make all ready for streams with these options: for seconds in this thread, and then for a
        window in the service's. What fails will tell the first stream.
        """
        try:
            load_parts()
        except SlimWhisperError as error:
            logger.debug("there can be no streams: %s", error)
            return
        with self.changed:
            self._expected = options
            self.changed.notify()

    def admit(self, stream: LiveStream) -> None:
        """Accept a stream, with `changed` held. Raises BusyError."""
        count = sum(not other.closed for other in self.open)
        if count >= self.limits.streams:
            self._counts.refused += 1
            raise BusyError(f"{count} live streams are open; try again in a minute")
        self.open[stream] = None
        self.changed.notify()

    # -- on the service's thread -------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a stream waits for this thread."""
        return self._expected is not None or any(stream.waits for stream in self.open)

    def take_in(self) -> None:
        """Begin new streams, and hand all of them what has come."""
        expected, self._expected = self._expected, None
        if expected is not None:
            with suppress(SlimWhisperError):
                self._engines.warm_up(expected)
        for stream in list(self.open):
            try:
                if stream.closed:
                    self.end(stream, None)
                    continue
                if stream.stream is None:
                    self._begin(stream)
                stream.take_in()
            except Exception as error:
                self.end(stream, as_ours(error))
        hear_together([s.stream for s in self.open if s.stream is not None])

    def _begin(self, stream: LiveStream) -> None:
        """Make its `Stream`."""
        self._engines.load_for_users(stream.model)
        shared = self._engines.for_streams(stream.options)
        network = shared.engine.model
        stream.stream = Stream(network.dims, network.vocabulary, stream.options, network.settings)
        stream.updates = shared.updates
        shared.updates.add(stream.stream)

    def tell(self) -> None:
        """Tell the listeners what is new, and let go of the streams that have ended."""
        for stream in list(self.open):
            inner, updates = stream.stream, stream.updates
            if inner is None or updates is None or stream.closed:
                continue
            stream.count(self._counts)
            for event in stream.events():
                self._pass_on(stream, event)
            if inner in updates.failures:
                self.end(stream, updates.failures[inner])
            elif inner.ended:
                self.end(stream, stream.ending)

    def _pass_on(self, stream: LiveStream, event: LiveEvent | None) -> None:
        """Tell a listener. One that fails closes its stream, and harms no other."""
        if stream.closed:
            return
        if isinstance(event, Text) and event.committed:
            waited = time.monotonic() - stream.arrival(event.heard)
            self._counts.commit_latency.observe(waited)
        try:
            stream.listener(event)
        except Exception as error:
            logger.debug("a stream's listener failed: %s", error)
            stream.close()

    def end(self, stream: LiveStream, error: SlimWhisperError | None) -> None:
        """Let go of a stream, and say so: its end, after an error if there is one."""
        if stream not in self.open:
            return
        if stream.stream is not None and stream.updates is not None:
            stream.updates.drop(stream.stream)
            stream.updates = None  # who keeps the stream does not keep the engine
        stream.count(self._counts)
        with self.changed:
            del self.open[stream]
        if error is not None:
            self._pass_on(stream, Failed(error))
        self._pass_on(stream, None)
        stream.close()

    def fail(self, error: SlimWhisperError, updates: Updates | None = None) -> None:
        """End all streams, or those of one engine."""
        for stream in list(self.open):
            if updates is None or stream.updates is updates:
                self.end(stream, error)

    def finish(self, error: SlimWhisperError) -> None:
        """Finish the streams that still listen; the error is what is told after their texts."""
        for stream in list(self.open):
            if not stream.finished:
                stream.ending = error
                stream.finish()
