"""Several recordings in one engine, whose slots their windows share."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from slimwhisper.audio.read_ahead import WORKERS, Loader
from slimwhisper.audio.readers import Readers
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Request, Window
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.longform.channels import AnyRecording
from slimwhisper.longform.engine_pool import EnginePool, search_of
from slimwhisper.longform.recording import AnySession
from slimwhisper.types import Options, Segment, Transcript

Source = TypeVar("Source")
Outcome = Transcript | SlimWhisperError
OnSegments = Callable[[Any, list[Segment], float], None]
OnDuration = Callable[[Any, float], None]
OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Calls while recordings are transcribed; except for `on_step`, the source is the first
    argument.
    """

    on_segments: OnSegments | None = None  # after a window: new segments, seconds done so far
    on_duration: OnDuration | None = None  # before a recording: its length in seconds
    on_step: OnStep | None = None  # after a step: slots in use, slots, seconds


@dataclass(frozen=True, slots=True, eq=False)
class SessionOwner:
    """A session with a slot, or waiting for one, as the owner of its windows."""

    batch: "Batch[Any]"
    recording: AnyRecording
    session: AnySession

    def accept(self, answer: Answer) -> Request | None:
        """Pass an answer to the session."""
        return self.batch.accept(self, answer)


class Batch(Generic[Source]):
    """Recordings whose windows share the slots of one engine fairly."""

    def __init__(
        self,
        engine: Engine,
        on_segments: OnSegments | None = None,
        slots: int | None = None,
    ) -> None:
        """slots: windows decoded together; None: as many as the engine can."""
        self.engine, self.on_segments = engine, on_segments
        self.unused = 0  # slots to leave free
        if slots not in (None, engine.batch_size):  # else also those that a GPU encodes ahead
            self.unused = engine.slots - slots
        self.running: dict[AnyRecording, Source] = {}  # in the order in which they last got a slot
        self._owners: dict[AnyRecording, set[SessionOwner]] = {}  # in a slot
        self._paused: dict[AnyRecording, deque[tuple[AnySession, Window]]] = {}
        self._ended: dict[AnyRecording, Outcome] = {}  # in this step

    @property
    def slots(self) -> int:
        """How many windows may be decoded together."""
        return min(self.engine.slots - self.unused, self.engine.batch_size)

    @property
    def filled(self) -> int:
        """How many of them there are in the next step."""
        return min(self.engine.slots - self.engine.room, self.slots)

    def add(self, source: Source, recording: AnyRecording) -> Transcript | None:
        """Add a recording. Returns its transcript if there is nothing to decode."""
        if recording.done:  # shorter than one mel frame
            recording.close()
            return recording.transcript()
        self.running[recording], self._owners[recording] = source, set()
        return None

    def fill(self, most: int | None = None) -> bool:
        """Fill free slots with windows. Returns whether slots are still free.

        The recording with the fewest windows in slots comes first, then the one waiting longest.

        most: windows that may wait for the encoder, or be in it; None: any number.
        """
        while self.engine.room > self.unused:
            in_slots = set[SessionOwner]().union(*self._owners.values())
            if most is not None and self.engine.unencoded(in_slots) >= most:
                return False
            for recording in sorted(self.running, key=lambda r: len(self._owners[r])):
                if (session_window := self._next(recording)) is not None:
                    break
            else:
                return True
            session, window = session_window
            self.running[recording] = self.running.pop(recording)
            owner = SessionOwner(self, recording, session)
            self._owners[recording].add(owner)
            self.engine.submit(owner, window)
        return False

    def _next(self, recording: AnyRecording) -> tuple[AnySession, Window] | None:
        """A session of the recording that needs a slot, and its window."""
        paused = self._paused.get(recording)
        if paused:
            return paused.popleft()
        while (session := recording.next_session()) is not None:
            request = session.next_request()
            if isinstance(request, Window):
                return session, request
        return None

    def step(self) -> list[tuple[Source, Outcome]]:
        """One step of the engine. Returns the recordings that have ended."""
        for ticket, answer in self.engine.step():
            self.engine.reply(ticket, ticket.owner.accept(answer))  # type: ignore[attr-defined]
        ended = [(self.running[recording], outcome) for recording, outcome in self._ended.items()]
        for recording in self._ended:
            self.drop(recording)
        self._ended.clear()
        return ended

    def drop(self, recording: AnyRecording) -> None:
        """Drop a recording: discard its windows in progress, and start no others."""
        del self.running[recording]
        self._paused.pop(recording, None)
        if owners := self._owners.pop(recording):
            self.engine.stop(owners)
        recording.close()

    def close(self) -> None:
        """Drop all recordings."""
        for recording in list(self.running):
            self.drop(recording)

    def accept(self, owner: SessionOwner, answer: Answer) -> Request | None:
        """Pass an answer to a session. Returns its next request, or None to free its slot.

        After a window, a recording gives up its slot if another recording has none, or if no slot
        is to be used any more.
        """
        recording, session = owner.recording, owner.session
        if owner not in self._owners.get(recording, ()) or recording in self._ended:
            return None  # dropped
        request: Request | None = None
        try:
            session.accept(answer)
            request = session.next_request()
        except Exception as error:
            self._ended[recording] = wrap_unexpected(error)
        if isinstance(request, Window) and request.mel is not None:
            others = (t for r, t in self._owners.items() if r not in self._ended)
            if not (all(others) and self.slots):
                self._paused.setdefault(recording, deque()).append((session, request))
                request = None
        if request is None:
            self._owners[recording].discard(owner)
        if recording not in self._ended:
            self._report(recording)
        return request

    def _report(self, recording: AnyRecording) -> None:
        segments = recording.report()
        if self.on_segments is not None:
            self.on_segments(self.running[recording], segments, recording.seconds_done)
        if recording.done:
            self._ended[recording] = recording.transcript()


def transcribe_all(
    engines: EnginePool,
    sources: Iterable[Source],
    load: Callable[[Source], AnyRecording],
    options: Options,
    slots: int,
    callbacks: Callbacks,
    readers: Readers,
) -> Generator[tuple[Source, Outcome], None, None]:
    """Transcribe recordings side by side; yields each transcript or error when it is ready.

    `load` runs in worker threads, a few recordings ahead; `readers` are closed at the end.
    """
    workers = readers.count or WORKERS
    with engines.lend(search_of(options), slots) as engine, closing(readers):
        loader = Loader(sources, load, ahead=workers + 1, workers=workers)
        batch: Batch[Source] = Batch(engine, callbacks.on_segments, slots)
        try:
            yield from _outcomes(batch, loader, callbacks)
        finally:
            loader.close(discard=lambda recording: recording.close())
            batch.close()


def _outcomes(
    batch: Batch[Source], loader: Loader[Source, AnyRecording], callbacks: Callbacks
) -> Generator[tuple[Source, Outcome], None, None]:
    while batch.running or not loader.exhausted:
        while batch.fill():
            loaded_source = loader.next(block=batch.engine.idle)
            if loaded_source is None:
                break
            source, loaded = loaded_source
            if isinstance(loaded, SlimWhisperError):
                yield source, loaded
                continue
            if callbacks.on_duration is not None:
                callbacks.on_duration(source, loaded.seconds)
            result = batch.add(source, loaded)
            if result is not None:
                yield source, result
        began, filled = time.perf_counter(), batch.filled
        ended = batch.step()
        if callbacks.on_step is not None and filled:
            callbacks.on_step(filled, batch.slots, time.perf_counter() - began)
        yield from ended
