"""Several recordings in one engine: their windows share its slots."""

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from slimwhisper.audio.read_ahead import WORKERS, Loader
from slimwhisper.audio.readers import Readers
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Request, Window
from slimwhisper.engine.scheduler import Ticket
from slimwhisper.errors import SlimWhisperError, as_ours
from slimwhisper.longform.engines import Engines, search_of
from slimwhisper.longform.recording import Recording
from slimwhisper.longform.session import Session
from slimwhisper.types import Options, Segment, Transcript

Source = TypeVar("Source")
Outcome = Transcript | SlimWhisperError
OnSegments = Callable[[Any, list[Segment], float], None]
OnDuration = Callable[[Any, float], None]
OnStep = Callable[[int, int, float], None]
OnForeign = Callable[[Ticket, Answer], None]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks while recordings are transcribed; they also get the source."""

    on_segments: OnSegments | None = None  # as windows end: new segments, the seconds done so far
    on_duration: OnDuration | None = None  # as a recording begins: its length in seconds
    on_step: OnStep | None = None  # after a step: slots in use, slots, seconds; without a source


class Batch(Generic[Source]):
    """Recordings whose windows share the slots of one engine fairly."""

    def __init__(
        self,
        engine: Engine,
        on_segments: OnSegments | None = None,
        slots: int | None = None,
        on_foreign: OnForeign | None = None,
    ) -> None:
        """slots: at most so many of the engine's are used; None: all. on_foreign: replies to the
        answers for windows that others have submitted to the engine; None: there are none.
        """
        self.engine, self.on_segments, self._on_foreign = engine, on_segments, on_foreign
        self.unused = 0 if slots is None else engine.slots - slots  # slots that are left free
        self.running: dict[Recording, Source] = {}  # most recently given a slot last
        self._windows: Counter[Recording] = Counter()  # sessions in a slot; never 0
        self._paused: dict[Recording, deque[tuple[Session, Window]]] = {}

    @property
    def slots(self) -> int:
        """How many slots may be used."""
        return self.engine.slots - self.unused

    @property
    def filled(self) -> int:
        """How many the next step uses."""
        return self.engine.slots - self.engine.room

    def add(self, source: Source, recording: Recording) -> Transcript | None:
        """Add a recording. Returns its transcript if there is nothing to decode."""
        if recording.done:  # shorter than one mel frame
            recording.close()
            return recording.transcript()
        self.running[recording] = source
        return None

    def fill(self, most: int | None = None) -> bool:
        """Fill free slots with windows. Returns whether slots are still free.

        The recording with the fewest windows in slots comes first, then the one waiting longest.

        most: windows of recordings that may wait for the encoder, or be in it; None: any number.
        """
        while self.engine.room > self.unused:
            if most is not None and self.engine.unencoded(self._is_own) >= most:
                return False
            for recording in sorted(self.running, key=self._windows.__getitem__):
                if (found := self._next(recording)) is not None:
                    break
            else:
                return True
            self.running[recording] = self.running.pop(recording)
            self._windows[recording] += 1
            self.engine.submit((recording, found[0]), found[1])
        return False

    def _is_own(self, tag: Any) -> bool:
        return tag[0] in self.running

    def _next(self, recording: Recording) -> tuple[Session, Window] | None:
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
        ended: list[tuple[Source, Outcome]] = []
        for ticket, answer in self.engine.step():
            recording = ticket.tag[0]
            if recording not in self.running:
                if self._on_foreign is None:  # dropped
                    self.engine.reply(ticket, None)
                else:
                    self._on_foreign(ticket, answer)
                continue
            source, outcome = self.running[recording], self._take(ticket, answer)
            if outcome is not None:
                self.drop(recording)
                ended.append((source, outcome))
        return ended

    def drop(self, recording: Recording) -> None:
        """Abandon a recording: windows in progress are discarded, others never start."""
        del self.running[recording]
        self._paused.pop(recording, None)
        if self._windows.pop(recording, 0):
            self.engine.stop(lambda tag: tag[0] is recording)
        recording.close()

    def close(self) -> None:
        """Drop all recordings."""
        for recording in list(self.running):
            self.drop(recording)

    def _take(self, ticket: Ticket, answer: Answer) -> Outcome | None:
        """Pass an answer to its session and submit its next request. Returns the outcome if that
        was the last.

        After a window, a recording gives up its slot if another recording has none, or if no slot
        may be used any more.
        """
        recording, session = ticket.tag
        request: Request | None = None
        try:
            session.accept(answer)
            request = session.next_request()
        except Exception as error:
            return as_ours(error)
        finally:
            others_wait = len(self._windows) < len(self.running) or not self.slots
            if isinstance(request, Window) and request.mel is not None and others_wait:
                self._paused.setdefault(recording, deque()).append((session, request))
                request = None
            self.engine.reply(ticket, request)
            if request is None:
                self._windows[recording] -= 1
                self._windows += Counter()  # without zeros
        segments = recording.report()
        if self.on_segments is not None:
            self.on_segments(self.running[recording], segments, recording.seconds_done)
        return recording.transcript() if recording.done else None


def transcribe_all(
    engines: Engines,
    sources: Iterable[Source],
    load: Callable[[Source], Recording],
    options: Options,
    slots: int,
    listeners: Listeners,
    readers: Readers,
) -> Generator[tuple[Source, Outcome], None, None]:
    """Transcribe recordings side by side; yields each result, or error, as it is ready.

    `load` runs in worker threads, a few recordings ahead; `readers` are closed in the end.
    """
    workers = readers.count or WORKERS
    with engines.lend(search_of(options), slots) as engine, closing(readers):
        loader = Loader(sources, load, ahead=workers + 1, workers=workers)
        batch: Batch[Source] = Batch(engine, listeners.on_segments, slots)
        try:
            yield from _outcomes(batch, loader, listeners)
        finally:
            loader.close(discard=Recording.close)
            batch.close()


def _outcomes(
    batch: Batch[Source], loader: Loader[Source, Recording], listeners: Listeners
) -> Generator[tuple[Source, Outcome], None, None]:
    """What `transcribe_all` yields."""
    while batch.running or not loader.exhausted:
        while batch.fill():
            found = loader.next(block=batch.engine.idle)
            if found is None:
                break
            source, loaded = found
            if isinstance(loaded, SlimWhisperError):
                yield source, loaded
                continue
            if listeners.on_duration is not None:
                listeners.on_duration(source, loaded.seconds)
            result = batch.add(source, loaded)
            if result is not None:
                yield source, result
        began, filled = time.perf_counter(), batch.filled
        ended = batch.step()
        if listeners.on_step is not None and filled:
            listeners.on_step(filled, batch.slots, time.perf_counter() - began)
        yield from ended
