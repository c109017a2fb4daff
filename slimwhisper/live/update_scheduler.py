"""Schedules the updates of many streams, and recordings, in one engine."""

from dataclasses import dataclass
from typing import Generic

from slimwhisper.engine.engine import ENCODE_BATCH, Engine
from slimwhisper.engine.requests import Answer, Request
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.live.speech_buffer import SpeechBuffer
from slimwhisper.live.stream import Stream
from slimwhisper.longform.batch import Batch, OnSegments, Source

RECORDINGS_SHARE = 4  # streams leave 1 / RECORDINGS_SHARE of the slots to waiting recordings


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOwner:
    """An update that waits for a slot or has one, as the owner of its window."""

    scheduler: "UpdateScheduler"
    stream: Stream
    buffer: SpeechBuffer

    def accept(self, answer: Answer) -> Request | None:
        """Pass an answer to its stream."""
        return self.scheduler.accept(self, answer)


class UpdateScheduler:
    """The streams of one engine. Of the updates that are due, the one with the earliest deadline
    starts first, with the newest audio.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.streams: dict[Stream, None] = {}
        self.failures: dict[Stream, SlimWhisperError] = {}  # of streams dropped because of them
        self._busy: set[UpdateOwner] = set()

    @property
    def busy(self) -> int:
        """Updates that wait for a slot or have one."""
        return len(self._busy)

    @property
    def speaking(self) -> int:
        """Streams with a running update, or with audio that no update has decoded."""
        busy = {update.stream for update in self._busy}
        return sum(stream in busy or stream.backlog > 0 for stream in self.streams)

    @property
    def due(self) -> bool:
        """Whether an update can start."""
        return any(stream.due is not None for stream in self.streams)

    def add(self, stream: Stream) -> None:
        """Serve a stream until it is dropped."""
        self.streams[stream] = None

    def drop(self, stream: Stream) -> None:
        """Stop serving a stream; no effect if it was dropped already."""
        self.streams.pop(stream, None)
        self.failures.pop(stream, None)
        if dropped := {update for update in self._busy if update.stream is stream}:
            self._busy -= dropped
            self.engine.stop(dropped)

    def fill(self, limit: int) -> None:
        """Start updates that are due while slots are free.

        A GPU's encoder gets one full batch ahead. On a CPU it gets a few windows: updates that
        start later have newer audio.

        limit: of updates in the engine.
        """
        ahead = self.engine.prefetch - self.engine.unencoded(self._busy)
        free_windows = min(ENCODE_BATCH, ahead)
        while free_windows > 0 and self.busy < limit and self.engine.room > 0:
            due = [(stream.due, i, stream) for i, stream in enumerate(self.streams)]
            earliest = min(((d, i, s) for d, i, s in due if d is not None), default=None)
            if earliest is None:
                return
            stream = earliest[2]
            try:
                buffer, window = stream.request()
            except Exception as error:
                self._fail(stream, error)
                continue
            update = UpdateOwner(self, stream, buffer)
            self._busy.add(update)
            self.engine.submit(update, window)
            free_windows -= 1

    def accept(self, update: UpdateOwner, answer: Answer) -> Request | None:
        """Pass an answer to its stream; None: the update is done."""
        request: Request | None = None
        if update in self._busy:  # else dropped
            try:
                request = update.stream.accept(update.buffer, answer)
            except Exception as error:
                self._fail(update.stream, error)
        if request is None:
            self._busy.discard(update)
        return request

    def _fail(self, stream: Stream, error: Exception) -> None:
        self.drop(stream)
        self.failures[stream] = wrap_unexpected(error)


class SharedEngine(Generic[Source]):
    """An engine, its recordings and its streams.

    Waiting recordings have a quarter of the slots, at least one. One slot per speaking stream, and
    one for the next, are reserved for streams. While there are streams, recordings hand the encoder
    one window at a time, so an update never waits for more. Without streams it works like `Batch`.
    """

    def __init__(self, engine: Engine, on_segments: OnSegments | None = None) -> None:
        """on_segments: as in `Batch`."""
        self.engine, self.updates = engine, UpdateScheduler(engine)
        self.batch: Batch[Source] = Batch(engine, on_segments)
        self.draining = False  # recordings start no windows, so that the engine becomes idle
        self._streams_were_first = False  # with a single slot, streams and recordings take turns

    @property
    def used(self) -> bool:
        """Whether it has recordings or streams, even idle ones."""
        return bool(self.batch.running or self.updates.streams)

    @property
    def working(self) -> bool:
        """Whether a step has something to do."""
        return bool(self.batch.running or self.updates.due or not self.engine.idle)

    def move(self, engine: Engine) -> None:
        """Continue in another engine; this one must be idle."""
        self.engine = self.updates.engine = self.batch.engine = engine

    def fill(self, live: bool) -> None:
        """Fill free slots. live: there are streams, in this engine or in another."""
        self.engine.share_cores(live)
        if self.draining:
            self.batch.unused = self.engine.slots
            return
        if not live:
            self.batch.unused = 0
            self.batch.fill()
            return
        slots = self.engine.slots
        for_recordings = -(-slots // RECORDINGS_SHARE)
        limit = max(slots - for_recordings, 1) if self.batch.running else slots
        reserved = min(len(self.updates.streams), self.updates.speaking + 1, slots - for_recordings)
        if slots == 1 and self._streams_were_first:
            self._fill_recordings(reserved)
            self.updates.fill(limit)
        else:
            self.updates.fill(limit)
            self._fill_recordings(reserved)
        self._streams_were_first = self.updates.busy > 0

    def _fill_recordings(self, reserved: int) -> None:
        self.batch.unused = max(reserved - self.updates.busy, 0)
        self.batch.fill(most=1)
