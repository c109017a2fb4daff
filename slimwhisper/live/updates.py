"""Many streams in one engine: whose update starts next, and what recordings keep beside them."""

from dataclasses import dataclass
from typing import Generic

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Request
from slimwhisper.errors import SlimWhisperError, as_ours
from slimwhisper.live.passage import Passage
from slimwhisper.live.stream import Stream
from slimwhisper.longform.batch import Batch, OnSegments, Source

RECORDINGS_SHARE = 4  # streams leave 1 / so many of the slots to recordings that have work


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One that waits for a slot or has one, as the owner of its window."""

    of: "Updates"
    stream: Stream
    passage: Passage

    def accept(self, answer: Answer) -> Request | None:
        """Pass an answer to its stream."""
        return self.of.accept(self, answer)


class Updates:
    """The streams of one engine. Of their updates that are due, the one with the oldest deadline
    starts first, with the newest audio.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.streams: dict[Stream, None] = {}
        self.failures: dict[Stream, SlimWhisperError] = {}  # of streams that were dropped for it
        self._busy: set[Update] = set()

    @property
    def busy(self) -> int:
        """Updates that wait for a slot or have one."""
        return len(self._busy)

    @property
    def speaking(self) -> int:
        """Streams with an update at work, or with audio that no update has known."""
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
        """Abandon a stream; no effect on one that was dropped."""
        self.streams.pop(stream, None)
        self.failures.pop(stream, None)
        if dropped := {update for update in self._busy if update.stream is stream}:
            self._busy -= dropped
            self.engine.stop(dropped)

    def fill(self, most: int) -> None:
        """Start updates that are due while slots are free.

        On a GPU, as many as the encoder takes at once, and the next ones wait for it. On a CPU, it
        has one and the next one: those that start later have newer audio.

        most: updates in the engine.
        """
        ahead = self.engine.ahead - self.engine.unencoded(self._busy)
        room = min(self.engine.encode_batch, ahead)
        while room > 0 and self.busy < most and self.engine.room > 0:
            due = [(stream.due, i, stream) for i, stream in enumerate(self.streams)]
            first = min(((d, i, s) for d, i, s in due if d is not None), default=None)
            if first is None:
                return
            stream = first[2]
            try:
                passage, window = stream.request()
            except Exception as error:
                self._fail(stream, error)
                continue
            update = Update(self, stream, passage)
            self._busy.add(update)
            self.engine.submit(update, window)
            room -= 1

    def accept(self, update: Update, answer: Answer) -> Request | None:
        """Pass an answer to its stream; None: the update is done."""
        request: Request | None = None
        if update in self._busy:  # else dropped
            try:
                request = update.stream.accept(update.passage, answer)
            except Exception as error:
                self._fail(update.stream, error)
        if request is None:
            self._busy.discard(update)
        return request

    def _fail(self, stream: Stream, error: Exception) -> None:
        self.drop(stream)
        self.failures[stream] = as_ours(error)


class SharedEngine(Generic[Source]):
    """An engine, its recordings and its streams.

    Recordings that have work keep a quarter of the slots, one at least. Streams find slots free:
    as many as speak, and one for the next. While there are streams, recordings hand the encoder one
    window at a time, so an update never waits for more. Without streams all is as in `Batch` alone.
    """

    def __init__(self, engine: Engine, on_segments: OnSegments | None = None) -> None:
        """on_segments: as in `Batch`."""
        self.engine, self.updates = engine, Updates(engine)
        self.batch: Batch[Source] = Batch(engine, on_segments)
        self.resting = False  # its recordings begin no windows, so that it is idle soon
        self._streams_had_it = False  # if there is one slot, they take turns

    @property
    def used(self) -> bool:
        """Whether it has recordings or streams, at work or not."""
        return bool(self.batch.running or self.updates.streams)

    @property
    def working(self) -> bool:
        """Whether a step has something to do."""
        return bool(self.batch.running or self.updates.due or not self.engine.idle)

    def move(self, engine: Engine) -> None:
        """Go on in another engine; this one is idle."""
        self.engine = self.updates.engine = self.batch.engine = engine

    def fill(self, live: bool) -> None:
        """Fill free slots. live: there are streams, in this engine or in another."""
        self.engine.share_cores(live)
        if self.resting:
            self.batch.unused = self.engine.slots
            return
        if not live:
            self.batch.unused = 0
            self.batch.fill()
            return
        slots = self.engine.slots
        kept = -(-slots // RECORDINGS_SHARE)
        most = max(slots - kept, 1) if self.batch.running else slots
        reserved = min(len(self.updates.streams), self.updates.speaking + 1, slots - kept)
        if slots == 1 and self._streams_had_it:
            self._fill_recordings(reserved)
            self.updates.fill(most)
        else:
            self.updates.fill(most)
            self._fill_recordings(reserved)
        self._streams_had_it = self.updates.busy > 0

    def _fill_recordings(self, reserved: int) -> None:
        self.batch.unused = max(reserved - self.updates.busy, 0)
        self.batch.fill(most=1)
