"""The service thread's side of live streams."""

import logging
import time
from collections import deque
from contextlib import suppress
from threading import Condition

from slimwhisper.app.service.counts import RequestCounts
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import BusyError, Limits, ModelChoice
from slimwhisper.app.service.live_stream import PIECE, Listener, LiveStream
from slimwhisper.audio.vad import SpeechStream
from slimwhisper.engine.requests import Search
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.live.stream import Stream, process_streams
from slimwhisper.live.types import LiveEvent, LiveOptions, StreamFailed, TextUpdate
from slimwhisper.service.source import Event, Failed
from slimwhisper.types import SAMPLE_RATE

logger = logging.getLogger("slimwhisper.serve")

MIN_COST = PIECE // 100  # samples that a call, or a shorter piece, counts as
ARRIVALS = 4096  # pieces whose arrival times are stored: of 20 ms each, 80 s


class ServedStream:
    """A live stream whose model is loaded: its state machine, attached to an engine."""

    def __init__(self, live: LiveStream, engines: Engines) -> None:
        """Raises OptionError."""
        network, self._transcriber = engines.network(live.options.window), engines.transcriber
        self.stream = Stream(network.dims, network.vocabulary, live.options, network.settings)
        call = self._transcriber.call(Search(), emit=self._receive, model=network)
        self._submission = call.submit(self.stream)
        self.error: SlimWhisperError | None = None  # what ended it
        self._live = live
        self._fed = 0  # samples
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=ARRIVALS)  # seconds fed, when
        self._reported = 0, 0  # updates, merged updates

    def _receive(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.error = wrap_unexpected(event.error)

    def drop(self) -> None:
        """Discard its updates."""
        self._transcriber.cancel(self._submission)

    def drain_inbox(self) -> None:
        """Pass the inbox to the state machine, up to `PIECE` samples."""
        budget = PIECE
        while budget > 0 and (item := self._live.next_item()) is not None:
            budget -= MIN_COST
            if callable(item):
                item(self.stream)
                continue
            samples, when = item
            self.stream.enqueue(samples)
            budget -= max(len(samples) - MIN_COST, 0)
            self._fed += len(samples)
            self._arrivals.append((self._fed / SAMPLE_RATE, when))

    def events(self) -> list[LiveEvent]:
        """The new events, after voice activity was found in all that was fed."""
        self._live.mark_processed(self._fed, self.stream.backlog)
        return self.stream.events()

    def count(self, counts: RequestCounts) -> None:
        """Add the updates since the last call."""
        counts.updates += self.stream.updates - self._reported[0]
        counts.merged_updates += self.stream.merged - self._reported[1]
        self._reported = self.stream.updates, self.stream.merged

    def arrival(self, seconds: float) -> float:
        """The time.monotonic() at which the stream's audio up to `seconds` had arrived; `seconds`
        never decreases from call to call.
        """
        while len(self._arrivals) > 1 and self._arrivals[0][0] < seconds:
            self._arrivals.popleft()
        return self._arrivals[0][1]


class Streams:
    """The live streams of a service."""

    def __init__(
        self, engines: Engines, limits: Limits, counts: RequestCounts, changed: Condition
    ) -> None:
        """changed: held where `open` changes, notified when a stream has work."""
        self._engines, self._counts = engines, counts
        self.limits, self.changed = limits, changed
        self.open: dict[LiveStream, ServedStream | None] = {}  # None: its model is not loaded yet
        self._expected: LiveOptions | None = None  # of streams to warm up for

    # -- from any thread ---------------------------------------------------------------------

    def warm_up(self, options: LiveOptions) -> None:
        """Prepare for streams with these options: in this thread, then for one window
        in the service's thread. The first stream reports any failure.
        """
        try:
            SpeechStream()  # loads the voice activity's network
        except SlimWhisperError as error:
            logger.debug("live streams are not available: %s", error)
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
        shared = (self._engines, self.limits, self.changed)
        stream = LiveStream(*shared, model, options, listener)
        self.open[stream] = None
        self.changed.notify()
        return stream

    # -- on the service's thread -------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a stream has work for this thread."""
        ready = all(served and not stream.has_work for stream, served in self.open.items())
        return self._expected is not None or not ready

    def drain_inboxes(self) -> None:
        """Begin new streams, and process the inboxes of all."""
        expected, self._expected = self._expected, None
        if expected is not None:
            with suppress(SlimWhisperError):
                self._engines.warm_up(expected)
        for stream in list(self.open):
            served = self.open[stream]
            try:
                if stream.closed:
                    self.end(stream, None)
                    continue
                if served is None:
                    self._engines.load_for_users(stream.model)
                    served = ServedStream(stream, self._engines)
                    self.open[stream] = served
                served.drain_inbox()
            except Exception as error:
                self.end(stream, wrap_unexpected(error))
        process_streams([served.stream for served in self.open.values() if served])

    def emit_events(self) -> None:
        """Pass new events to the listeners, and remove the streams that have ended."""
        for stream, served in list(self.open.items()):
            if served is None or stream.closed:
                continue
            served.count(self._counts)
            for event in served.events():
                if isinstance(event, TextUpdate) and event.committed:
                    latency = time.monotonic() - served.arrival(event.heard)
                    self._counts.commit_latency.observe(latency)
                self._emit(stream, event)
            if served.error is not None:
                self.end(stream, served.error)
            elif served.stream.ended:
                self.end(stream, stream.final_error)

    def _emit(self, stream: LiveStream, event: LiveEvent | None) -> None:
        """Call a listener. An error of it closes its stream, and no other."""
        if stream.closed:
            return
        try:
            stream.listener(event)
        except Exception as error:
            logger.debug("a stream's listener failed: %s", error)
            stream.close()

    def end(self, stream: LiveStream, error: SlimWhisperError | None) -> None:
        """Remove a stream, and emit its end, after an error if there is one."""
        if stream not in self.open:
            return
        with self.changed:
            served = self.open.pop(stream)
        if served is not None:
            served.drop()
            served.count(self._counts)
        if error is not None:
            self._emit(stream, StreamFailed(error))
        self._emit(stream, None)
        stream.close()

    def fail(self, error: SlimWhisperError) -> None:
        """End all streams."""
        for stream in list(self.open):
            self.end(stream, error)

    def finish(self, error: SlimWhisperError) -> None:
        """Finish the streams that still accept audio; the error is emitted after their texts."""
        for stream in list(self.open):
            if not stream.finished:
                stream.final_error = error
                stream.finish()
