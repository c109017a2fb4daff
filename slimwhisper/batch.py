"""Recordings through one engine: its slots are shared by the windows of all of them."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

import torch

from slimwhisper.engine import Engine
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.lanes import Ticket
from slimwhisper.loader import WORKERS, Loader
from slimwhisper.model import Model
from slimwhisper.recording import Recording
from slimwhisper.types import (
    Answer,
    Breadth,
    Options,
    Request,
    Segment,
    Transcript,
    Window,
)
from slimwhisper.vocabulary import get_vocabulary

Source = TypeVar("Source")
Outcome = Transcript | SlimWhisperError
OnSegments = Callable[[Any, list[Segment], float], None]
OnDuration = Callable[[Any, float], None]


def make_engine(model: Model, options: Options, slots: int) -> Engine:
    """An engine with room for what the options ask for. OptionError where memory is short."""
    breadth = Breadth(
        beams=options.beam_size,
        patience=options.patience or 1.0,
        samples=options.best_of or 1,
        length_penalty=options.length_penalty,
    )
    try:
        return Engine(model, get_vocabulary(model.dims), slots, breadth)
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
        self.running: dict[Recording, Source] = {}  # in the order in which they came
        self._windows: Counter[Recording] = Counter()  # sessions under way

    def add(self, source: Source, recording: Recording) -> Transcript | None:
        """Take in a recording; its transcript where there is nothing to hear in it."""
        if recording.done:  # shorter than one mel frame
            recording.close()
            return recording.transcript()
        self.running[recording] = source
        return None

    def fill(self) -> bool:
        """Start sessions while there is room; whether there is still some.

        The recording with the fewest windows under way comes first, so that a long one in many
        pieces leaves room for the others.
        """
        while self.engine.room > 0:
            for recording in sorted(self.running, key=self._windows.__getitem__):
                session = recording.next_session()
                if session is not None:
                    break
            else:
                return True
            request = session.next_request()
            if isinstance(request, Window):
                self._windows[recording] += 1
                self.engine.submit((recording, session), request)
        return False

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
        if self._windows.pop(recording, 0):
            self.engine.stop(lambda tag: tag[0] is recording)
        recording.close()

    def close(self) -> None:
        """Give all up."""
        for recording in list(self.running):
            self.drop(recording)

    def _take(self, ticket: Ticket, answer: Answer) -> Outcome | None:
        """Pass an answer on, ask for what comes next; the outcome where that was the last."""
        recording, session = ticket.tag
        request: Request | None = None
        try:
            session.accept(answer)
            request = session.next_request()
        except Exception as error:
            return as_ours(error)
        finally:
            self.engine.reply(ticket, request)
            self._windows[recording] -= request is None
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
    on_segments: OnSegments | None = None,
    on_duration: OnDuration | None = None,
) -> Generator[tuple[Source, Outcome], None, None]:
    """Transcribe recordings side by side; yields each as it ends, or its error.

    `load` runs in worker threads, some recordings ahead.
    """
    engine = make_engine(model, options, slots)
    loader = Loader(sources, load, ahead=WORKERS + 1)
    batch: Batch[Source] = Batch(engine, on_segments)
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
                if on_duration is not None:
                    on_duration(source, loaded.seconds)
                result = batch.add(source, loaded)
                if result is not None:
                    yield source, result
            yield from batch.step()
    finally:
        loader.close(discard=Recording.close)
        batch.close()
