"""Recordings through one engine: its slots are shared by the windows of all of them."""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from slimwhisper.audio.read_ahead import WORKERS, Loader
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.lanes import Ticket
from slimwhisper.engine.requests import Answer, Request, Search, Window
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.longform.recording import Recording
from slimwhisper.longform.session import Session
from slimwhisper.model.model import Model
from slimwhisper.types import Options, Segment, Transcript
from slimwhisper.vocabulary import get_vocabulary

Source = TypeVar("Source")
Outcome = Transcript | SlimWhisperError
OnSegments = Callable[[Any, list[Segment], float], None]
OnDuration = Callable[[Any, float], None]


@dataclass(frozen=True, slots=True)
class Listeners:
    """What is called while recordings are transcribed, with their sources."""

    on_segments: OnSegments | None = None  # as windows end: new segments, the seconds that are done
    on_duration: OnDuration | None = None  # as a recording begins: its seconds


def make_engine(model: Model, options: Options, slots: int) -> Engine:
    """An engine with room for what the options ask for. OptionError where memory is short."""
    search = Search(
        beams=options.beam_size,
        patience=options.patience or 1.0,
        samples=options.best_of or 1,
        length_penalty=options.length_penalty,
    )
    try:
        return Engine(model, get_vocabulary(model.dims), slots, search)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        need = slots * model.bytes_per_window() / 1e9
        raise OptionError(
            f"batch_size {slots}: no room on {model.device} for the caches, {need:.1f} GB and more "
            "with beams; choose a smaller one"
        ) from error


class Batch(Generic[Source]):
    """Recordings whose windows share the slots of one engine, each fairly."""

    def __init__(self, engine: Engine, on_segments: OnSegments | None = None) -> None:
        self.engine, self.on_segments = engine, on_segments
        self.running: dict[Recording, Source] = {}  # whoever had a slot last comes last
        self._windows: Counter[Recording] = Counter()  # sessions in a slot; never 0
        self._paused: dict[Recording, deque[tuple[Session, Window]]] = {}

    def add(self, source: Source, recording: Recording) -> Transcript | None:
        """Take in a recording; its transcript where there is nothing to hear in it."""
        if recording.done:  # shorter than one mel frame
            recording.close()
            return recording.transcript()
        self.running[recording] = source
        return None

    def fill(self) -> bool:
        """Give slots away while there is room; whether there is still some.

        The recording with the fewest windows in slots comes first, then who has waited longest.
        """
        while self.engine.room > 0:
            for recording in sorted(self.running, key=self._windows.__getitem__):
                if (found := self._next(recording)) is not None:
                    break
            else:
                return True
            self.running[recording] = self.running.pop(recording)
            self._windows[recording] += 1
            self.engine.submit((recording, found[0]), found[1])
        return False

    def _next(self, recording: Recording) -> tuple[Session, Window] | None:
        """A session of the recording that could use a slot, and what it asks for."""
        paused = self._paused.get(recording)
        if paused:
            return paused.popleft()
        while (session := recording.next_session()) is not None:
            request = session.next_request()
            if isinstance(request, Window):
                return session, request
        return None

    def step(self) -> list[tuple[Source, Outcome]]:
        """One step of the engine; what has ended."""
        ended: list[tuple[Source, Outcome]] = []
        for ticket, answer in self.engine.step():
            recording = ticket.tag[0]
            if recording not in self.running:  # given up
                self.engine.reply(ticket, None)
                continue
            source, outcome = self.running[recording], self._take(ticket, answer)
            if outcome is not None:
                self.drop(recording)
                ended.append((source, outcome))
        return ended

    def drop(self, recording: Recording) -> None:
        """Let go of a recording: windows under way end unheard, others never begin."""
        del self.running[recording]
        self._paused.pop(recording, None)
        if self._windows.pop(recording, 0):
            self.engine.stop(lambda tag: tag[0] is recording)
        recording.close()

    def close(self) -> None:
        """Give all up."""
        for recording in list(self.running):
            self.drop(recording)

    def _take(self, ticket: Ticket, answer: Answer) -> Outcome | None:
        """Pass an answer on, ask for what comes next; the outcome where that was the last.

        Between two windows a recording makes room where another has none, and waits its turn.
        """
        recording, session = ticket.tag
        request: Request | None = None
        try:
            session.accept(answer)
            request = session.next_request()
        except Exception as error:
            return as_ours(error)
        finally:
            others_wait = len(self._windows) < len(self.running)
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
    model: Model,
    sources: Iterable[Source],
    load: Callable[[Source], Recording],
    options: Options,
    slots: int,
    listeners: Listeners,
) -> Generator[tuple[Source, Outcome], None, None]:
    """Transcribe recordings side by side; yields each as it ends, or its error.

    `load` runs in worker threads, some recordings ahead.
    """
    engine = make_engine(model, options, slots)
    loader = Loader(sources, load, ahead=WORKERS + 1)
    batch: Batch[Source] = Batch(engine, listeners.on_segments)
    try:
        while batch.running or not loader.exhausted:
            while batch.fill():
                found = loader.next(block=engine.idle)
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
            yield from batch.step()
    finally:
        loader.close(discard=Recording.close)
        batch.close()
