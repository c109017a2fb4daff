"""Live streams: as their callers hold them, and what the service's thread does for them."""

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
from slimwhisper.app.service.jobs import BusyError, Job, Limits, ModelChoice
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.live.setup import Setup, check
from slimwhisper.live.stream import Stream, as_samples, hear_together
from slimwhisper.live.types import Failed, LiveEvent, LiveOptions, Text
from slimwhisper.live.updates import SharedEngine, Updates
from slimwhisper.live.warming import load_parts
from slimwhisper.types import SAMPLE_RATE

logger = logging.getLogger("slimwhisper.serve")

# Called on the service's thread; None: the end, after the last `Ended` or after `Failed`
Listener = Callable[[LiveEvent | None], None]
# samples and the time they came at, or a call
Item = tuple[NDArray[np.float32], float] | Callable[[Stream], None]

PIECE = SAMPLE_RATE  # samples that a stream takes in before it is the others' turn
LEAST = PIECE // 100  # samples that a call, or a shorter piece, counts as
ARRIVALS = 4096  # pieces whose arrival is remembered: of 20 ms each, 80 s


class LiveStream:
    """A stream, as `Service.open_stream` returns it. Any thread may call; nothing waits.

    Calls after `finish`, or after the end, have no effect.
    """

    def __init__(
        self, streams: "Streams", model: ModelChoice, options: LiveOptions, listener: Listener
    ) -> None:
        """streams: those of the service."""
        self.model, self.options, self.listener = model, options, listener
        self._streams, self._changed = streams, streams.changed
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
        samples, now, most = as_samples(samples), time.monotonic(), self._streams.limits.backlog
        count = len(samples)
        with self._changed:
            if self.finished or self.closed:
                return
            if self.backlog + count / SAMPLE_RATE > most:
                waiting = f"more than {most:g} s of the stream's audio wait"
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


class Served:
    """A live stream whose model is loaded: its state machine, in an engine."""

    def __init__(self, live: LiveStream, shared: SharedEngine[Job]) -> None:
        """Raises OptionError."""
        network = shared.engine.model
        self.stream = Stream(network.dims, network.vocabulary, live.options, network.settings)
        self.updates = shared.updates
        self.updates.add(self.stream)
        self._live = live
        self._taken = 0  # samples
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=ARRIVALS)  # seconds taken, when
        self._counted = 0, 0  # updates, merged ones

    def take_in(self) -> None:
        """Hand the state machine what has come, up to `PIECE` samples."""
        room = PIECE
        while room > 0 and (item := self._live.take()) is not None:
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
        """What there is to tell, now that what was handed in has been judged."""
        self._live.judged(self._taken, self.stream.backlog)
        return self.stream.events()

    def count(self, counts: Counts) -> None:
        """Add the updates that are new."""
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
        self._engines, self._counts = engines, counts
        self.limits, self.changed = limits, changed
        self.open: dict[LiveStream, Served | None] = {}  # None: its model is not loaded yet
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

    def begin(self, model: ModelChoice, options: LiveOptions, listener: Listener) -> LiveStream:
        """A new stream, with `changed` held. Raises BusyError."""
        count = sum(not other.closed for other in self.open)
        if count >= self.limits.streams:
            self._counts.refused += 1
            raise BusyError(f"{count} live streams are open; try again in a minute")
        stream = LiveStream(self, model, options, listener)
        self.open[stream] = None
        self.changed.notify()
        return stream

    # -- on the service's thread -------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a stream waits for this thread."""
        begun = all(served and not stream.waits for stream, served in self.open.items())
        return self._expected is not None or not begun

    def take_in(self) -> None:
        """Begin new streams, and hand all of them what has come."""
        expected, self._expected = self._expected, None
        if expected is not None:
            with suppress(SlimWhisperError):
                self._engines.warm_up(expected)
        for stream, served in list(self.open.items()):
            try:
                if stream.closed:
                    self.end(stream, None)
                    continue
                if served is None:
                    self._engines.load_for_users(stream.model)
                    served = Served(stream, self._engines.for_streams(stream.options))
                    self.open[stream] = served
                served.take_in()
            except Exception as error:
                self.end(stream, as_ours(error))
        hear_together([served.stream for served in self.open.values() if served])

    def tell(self) -> None:
        """Tell the listeners what is new, and let go of the streams that have ended."""
        for stream, served in list(self.open.items()):
            if served is None or stream.closed:
                continue
            served.count(self._counts)
            for event in served.events():
                if isinstance(event, Text) and event.committed:
                    waited = time.monotonic() - served.arrival(event.heard)
                    self._counts.commit_latency.observe(waited)
                self._pass_on(stream, event)
            if served.stream in served.updates.failures:
                self.end(stream, served.updates.failures[served.stream])
            elif served.stream.ended:
                self.end(stream, stream.ending)

    def _pass_on(self, stream: LiveStream, event: LiveEvent | None) -> None:
        """Tell a listener. One that fails closes its stream, and harms no other."""
        if stream.closed:
            return
        try:
            stream.listener(event)
        except Exception as error:
            logger.debug("a stream's listener failed: %s", error)
            stream.close()

    def end(self, stream: LiveStream, error: SlimWhisperError | None) -> None:
        """Let go of a stream, and say so: its end, after an error if there is one."""
        if stream not in self.open:
            return
        with self.changed:
            served = self.open.pop(stream)
        if served is not None:
            served.updates.drop(served.stream)
            served.count(self._counts)
        if error is not None:
            self._pass_on(stream, Failed(error))
        self._pass_on(stream, None)
        stream.close()

    def fail(self, error: SlimWhisperError, updates: Updates | None = None) -> None:
        """End all streams, or those of one engine."""
        for stream, served in list(self.open.items()):
            if updates is None or (served is not None and served.updates is updates):
                self.end(stream, error)

    def finish(self, error: SlimWhisperError) -> None:
        """Finish the streams that still listen; the error is what is told after their texts."""
        for stream in list(self.open):
            if not stream.finished:
                stream.ending = error
                stream.finish()
