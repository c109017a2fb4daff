"""The live streams of a service: their own side, for those who feed them, and the service's."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from slimwhisper.app.service.counts import RequestCounts
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import BusyError, Limits, ModelChoice
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError, SlimWhisperError, wrap_unexpected
from slimwhisper.live.stream import Stream, as_samples, process_streams
from slimwhisper.live.types import LiveEvent, LiveOptions, StreamFailed, TextUpdate
from slimwhisper.service.shared_engine import Submission
from slimwhisper.service.source import Event, Failed
from slimwhisper.service.transcriber import Call
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import SpeechStream

logger = logging.getLogger("slimwhisper.serve")

# Called on the service's thread; None: the end, after the last `UtteranceEnded` or `StreamFailed`
Listener = Callable[[LiveEvent | None], None]
# samples and their arrival time, or a call
Item = tuple[NDArray[np.float32], float] | Callable[[Stream], None]

PIECE = SAMPLE_RATE  # samples that a stream processes before the next stream's turn
MIN_COST = PIECE // 100  # samples that a call, or a shorter piece, counts as
ARRIVALS = 4096  # pieces whose arrival times are stored: of 20 ms each, 80 s


class LiveStream:
    """A stream, as `Service.open_stream` returns it. Any thread may call; no call blocks.

    Calls after `finish`, or after the end, have no effect.
    """

    def __init__(
        self, streams: "Streams", model: ModelChoice, options: LiveOptions, listener: Listener
    ) -> None:
        """streams: of the service, which has their limits and counts in common."""
        self.model, self.options, self.listener = model, options, listener
        self._streams, self._engines, self._changed = streams, streams.engines, streams.changed
        self._inbox: deque[Item] = deque()
        self._appended = 0  # samples
        self._decoded = 0.0  # seconds of audio that updates have decoded, or that are silence
        self.finished = self.closed = False
        self.final_error: SlimWhisperError | None = None  # emitted last
        # for the service's thread, once the model is loaded
        self.stream: Stream | None = None
        self.error: SlimWhisperError | None = None  # what ended it
        self._submission: Submission | None = None
        self._fed = 0  # samples
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=ARRIVALS)  # seconds fed, when

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
        samples, now, limit = as_samples(samples), time.monotonic(), self._streams.limits.backlog
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
        """Other options, from the next utterance on; `turns` at once. Raises OptionError."""
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

    # -- on the service's thread -------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether the service's thread has work for it, or may have: another thread's steps may end
        a finished one.
        """
        return bool(self.stream is None or self._inbox or self.closed or self.finished)

    def drain_inbox(self) -> None:
        """Pass the inbox to the state machine, up to `PIECE` samples; load the model at first.
        Raises SlimWhisperError.
        """
        if self.stream is None:
            self._engines.load_for_users(self.model)
            network = self._engines.network(self.options.window)
            stream = Stream(network.facts, self.options)
            call = Call(self._engines.transcriber, Search(), emit=self._receive, model=network)
            self.stream, self._submission = stream, call.submit(stream)
        budget = PIECE
        while budget > 0 and self._inbox:
            with self._changed:  # `close` may have emptied it
                item = self._inbox.popleft() if self._inbox else Stream.report
            budget -= MIN_COST
            if callable(item):
                with self._engines.transcriber.paused():
                    item(self.stream)
                continue
            samples, when = item
            self.stream.enqueue(samples)
            budget -= max(len(samples) - MIN_COST, 0)
            self._fed += len(samples)
            self._arrivals.append((self._fed / SAMPLE_RATE, when))

    def _receive(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.error = wrap_unexpected(event.error)

    def events(self) -> list[LiveEvent]:
        """The new events, after voice activity was found in all that was fed; they are counted."""
        assert self.stream is not None
        self._decoded = self._fed / SAMPLE_RATE - self.stream.backlog
        events = self.stream.events()
        for event in events:
            if isinstance(event, TextUpdate) and event.committed:
                while len(self._arrivals) > 1 and self._arrivals[0][0] < event.heard:
                    self._arrivals.popleft()
                latency = time.monotonic() - self._arrivals[0][1]
                self._streams.counts.commit_latency.observe(latency)
        self._count()
        return events

    def _count(self) -> None:
        """Count the updates since the last call."""
        if (stream := self.stream) is not None:
            counts = self._streams.counts
            counts.updates, stream.updates = counts.updates + stream.updates, 0
            counts.merged_updates, stream.merged = counts.merged_updates + stream.merged, 0

    def emit(self, event: LiveEvent | None) -> None:
        """Call the listener. An error of it closes this stream, and no other."""
        if self.closed:
            return
        try:
            self.listener(event)
        except Exception as error:
            logger.debug("a stream's listener failed: %s", error)
            self.close()

    def end(self, error: SlimWhisperError | None) -> None:
        """Remove it, discard its updates, and emit its end, after an error if there is one."""
        with self._changed:
            self._streams.open.remove(self)
        if self._submission is not None:
            self._engines.transcriber.cancel(self._submission)
        self._count()
        self.stream = self._submission = None
        if error is not None:
            self.emit(StreamFailed(error))
        self.emit(None)
        self.close()


class Streams:
    """The live streams of a service."""

    def __init__(
        self, engines: Engines, limits: Limits, counts: RequestCounts, changed: Condition
    ) -> None:
        """changed: held where `open` changes, notified when a stream has work."""
        self.engines, self.limits, self.counts, self.changed = engines, limits, counts, changed
        self.open: list[LiveStream] = []
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
            self.counts.refused += 1
            raise BusyError(f"{count} live streams are open; try again in a minute")
        stream = LiveStream(self, model, options, listener)
        self.open.append(stream)
        self.changed.notify()
        return stream

    # -- on the service's thread -------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a stream has work for this thread."""
        return self._expected is not None or any(stream.has_work for stream in self.open)

    def drain_inboxes(self) -> None:
        """Begin new streams, and process the inboxes of all."""
        expected, self._expected = self._expected, None
        if expected is not None:
            with suppress(SlimWhisperError):
                self.engines.warm_up(expected)
        for stream in self.open.copy():
            try:
                if stream.closed:
                    stream.end(None)
                else:
                    stream.drain_inbox()
            except Exception as error:
                stream.end(wrap_unexpected(error))
        if streams := [live.stream for live in self.open if live.stream is not None]:
            with self.engines.transcriber.paused():  # another thread's steps advance them, too
                process_streams(streams)

    def emit_events(self) -> None:
        """Pass new events to the listeners, and remove the streams that have ended."""
        pairs = [(live, live.stream) for live in self.open.copy() if not live.closed]
        if not pairs:
            return
        with self.engines.transcriber.paused():  # as above
            given = [(live, live.events(), s.ended) for live, s in pairs if s]
        for live, events, ended in given:
            for event in events:
                live.emit(event)
            if live.error is not None or ended:
                live.end(live.error or live.final_error)

    def fail(self, error: SlimWhisperError) -> None:
        """End all streams."""
        for stream in self.open.copy():
            stream.end(error)

    def finish(self, error: SlimWhisperError) -> None:
        """Finish the streams that still accept audio; the error is emitted after their texts."""
        for stream in self.open.copy():
            if not stream.finished:
                stream.final_error = error
                stream.finish()
