"""Recordings in one engine: read ahead, decoded side by side, each returned when it is done."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from slimwhisper.audio.read_ahead import WORKERS, Loader
from slimwhisper.audio.readers import Readers
from slimwhisper.engine.pool import search_of
from slimwhisper.engine.requests import Answer, Request, Window
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.recordings.load import AnyRecording
from slimwhisper.service.source import Event, Failed, Finished, Progress, Stepped
from slimwhisper.service.transcriber import Call, Transcriber
from slimwhisper.types import Options, Segment, Transcript

Source = TypeVar("Source")
Outcome = Transcript | SlimWhisperError


class RecordingSource:
    """A recording as a source of sessions. Its news are segments and the seconds done so far."""

    live = False
    due = None
    backlog = 0.0

    def __init__(self, recording: AnyRecording) -> None:
        self.recording = recording

    def next_window(self) -> tuple[Any, Window] | None:
        """The first window of the next session."""
        while (session := self.recording.next_session()) is not None:
            request = session.next_request()
            if isinstance(request, Window):
                return session, request
        return None

    def accept(self, session: Any, answer: Answer) -> Request | None:
        """Pass an answer to its session."""
        session.accept(answer)
        return session.next_request()

    def report(self) -> tuple[list[Segment], float]:
        """The new segments, and the seconds of audio done."""
        return self.recording.report(), self.recording.seconds_done

    @property
    def done(self) -> bool:
        """Whether all is transcribed."""
        return self.recording.done

    def result(self) -> Transcript:
        """The transcript."""
        return self.recording.transcript()

    def close(self) -> None:
        """Free memory and files."""
        self.recording.close()


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Calls while recordings are transcribed; except for `on_step`, the source is the first
    argument.
    """

    on_segments: Callable[[Any, list[Segment], float], None] | None = None
    on_duration: Callable[[Any, float], None] | None = None
    on_step: Callable[[int, int, float], None] | None = None


def transcribe_all(
    transcriber: Transcriber,
    sources: Iterable[Source],
    load: Callable[[Source], AnyRecording],
    options: Options,
    slots: int,
    callbacks: Callbacks,
    readers: Readers,
) -> Generator[tuple[Source, Outcome], None, None]:
    """Transcribe recordings side by side; yields each transcript or error when it is ready.

    Arguments:
        load: runs in worker threads, a few recordings ahead.
        slots: windows decoded together, at most.
        callbacks: of the calling thread.
        readers: are closed at the end.
    Raises:
        OptionError if there is too little memory, and what else ends the engine.
    """
    workers = readers.count or WORKERS
    with transcriber.call(search_of(options), slots) as call, closing(readers):
        call.steps = callbacks.on_step is not None
        loader = Loader(sources, load, ahead=workers + 1, workers=workers)
        try:
            while call.submissions or call.events or not loader.exhausted:
                while call.fill():
                    loaded = loader.next(block=not call.submissions)
                    if loaded is None:
                        break
                    source, recording = loaded
                    if isinstance(recording, SlimWhisperError):
                        yield source, recording
                        continue
                    if callbacks.on_duration is not None:
                        callbacks.on_duration(source, recording.seconds)
                    call.submit(RecordingSource(recording), source)
                if not call.events:
                    transcriber.step()
                yield from _outcomes(call, callbacks)
        finally:
            loader.close(discard=lambda recording: recording.close())


def _outcomes(call: Call, callbacks: Callbacks) -> Generator[tuple[Source, Outcome], None, None]:
    """Handle the events that there are."""
    while call.events:
        event: Event = call.events.popleft()
        match event:
            case Progress(source, (segments, seconds)):
                if callbacks.on_segments is not None:
                    callbacks.on_segments(source, segments, seconds)
            case Stepped(filled, slots, seconds):
                if callbacks.on_step is not None and filled:
                    callbacks.on_step(filled, slots, seconds)
            case Finished(source, result):
                yield source, result
            case Failed(source, error, of_engine):
                if of_engine:
                    raise error
                yield source, wrap_unexpected(error)
