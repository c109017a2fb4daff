"""Recordings through one engine: its slots are shared by the windows of all of them."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import torch

from slimwhisper.engine import Engine
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.lanes import Ticket
from slimwhisper.loader import WORKERS, Loader
from slimwhisper.model import Model
from slimwhisper.recording import Recording
from slimwhisper.types import Answer, Breadth, Options, Segment, Transcript, Window
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
    running: dict[Recording, Source] = {}

    def start_session() -> bool:
        """Submit one more session of a running recording, if there is one."""
        for recording, source in running.items():
            session = None if recording.failed else recording.next_session()
            if session is not None:
                request = session.next_request()
                if isinstance(request, Window):
                    engine.submit((source, recording, session), request)
                return True
        return False

    def finish(recording: Recording) -> None:
        running.pop(recording, None)
        recording.close()

    def take(ticket: Ticket, answer: Answer) -> Outcome | None:
        """Pass an answer on, ask for what comes next; the outcome where that was the last."""
        source, recording, session = ticket.tag
        if recording.failed:
            engine.reply(ticket, None)
            return None
        try:
            session.accept(answer)
            engine.reply(ticket, session.next_request())
        except Exception as error:
            recording.failed = True
            engine.reply(ticket, None)
            return as_ours(error)
        segments = recording.report()
        if on_segments is not None:
            on_segments(source, segments, recording.seconds_done)
        return recording.transcript() if recording.done else None

    try:
        while running or not loader.exhausted:
            while engine.room > 0:
                if start_session():
                    continue
                found = loader.next(block=engine.idle)
                if found is None:
                    break
                source, loaded = found
                if isinstance(loaded, SlimWhisperError):
                    yield source, loaded
                    continue
                if on_duration is not None:
                    on_duration(source, loaded.seconds)
                running[loaded] = source
                if loaded.done:  # shorter than one mel frame
                    yield source, loaded.transcript()
                    finish(loaded)
            for ticket, answer in engine.step():
                source, recording, _ = ticket.tag
                outcome = take(ticket, answer)
                if outcome is not None:
                    finish(recording)
                    yield source, outcome
    finally:
        loader.close(discard=Recording.close)
        for recording in running:
            recording.close()
