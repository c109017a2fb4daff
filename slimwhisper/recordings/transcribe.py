"""Recordings: made as the options ask, read ahead, decoded side by side."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from slimwhisper.audio.load import AudioSource, load_channels, load_samples, stem_of
from slimwhisper.audio.samples import Samples
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.cores import WORKERS, use_threads
from slimwhisper.engine.requests import Answer, Exchange, Request, Window
from slimwhisper.errors import OptionError, SlimWhisperError, warnings_to, wrap_unexpected
from slimwhisper.longform.recording import Recording
from slimwhisper.longform.requests import search_of
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.recordings.passes import passes_of, spoken_by
from slimwhisper.service.source import Event, Failed, Finished, Progress, SessionSource, Stepped
from slimwhisper.service.transcriber import Call, Transcriber
from slimwhisper.types import SAMPLE_RATE, Segment, Transcript

if TYPE_CHECKING:  # imported where they are asked for
    from slimwhisper.recordings.aligned import AlignedRecording
    from slimwhisper.recordings.channels import SplitRecording

AnyRecording: TypeAlias = "Recording | SplitRecording | AlignedRecording"
NOT_ALIGNED = ("channels", "diarize", "sentences", "vad_filter")  # options that a script refuses


def make_recording(
    samples: Samples, model: Model, options: Options, name: str = "", speaker: str | None = None
) -> Recording:
    """A recording for a model, with the passes that the options ask for.

    Reads all samples, once more each to find speech and speakers. name: of the recording, without
    suffix, for an RTTM file. speaker: of all segments, if there is only one. Raises AudioError,
    DependencyError, OptionError.
    """
    warn_of_empty_clips(len(samples) / SAMPLE_RATE, options, name)
    passes = passes_of(samples, options, name)
    if speaker is not None:
        passes.windows.append(partial(spoken_by, speaker))
    if passes.speech is not None:
        from slimwhisper.recordings.speech import SpeechRecording

        return SpeechRecording(samples, model, options, passes)
    return Recording(samples, model.dims, options, model.vocabulary, passes)


def warn_of_empty_clips(end: float, options: Options, name: str) -> None:
    """Say which clips have no text: after `end`, in seconds, or with an end before its start."""
    points = options.clip_seconds
    for start, stop in zip_longest(points[::2], points[1::2], fillvalue=end):
        if 0 < start >= min(stop, end):
            what = f"its clip at {start:g} s ends at {min(stop, end):g} s"
            warnings_to.get()(f"{name or 'the recording'}: {what}; check clip_timestamps")


def split_recording(
    channels: Mapping[str, Samples], model: Model, options: Options, name: str = ""
) -> "SplitRecording":
    """A recording of channels, by their speakers' names; otherwise as `make_recording`."""
    from slimwhisper.recordings.channels import SplitRecording

    how = (model, options, name)
    return SplitRecording([make_recording(one, *how, who) for who, one in channels.items()])


def aligned_recording(
    samples: Samples, model: Model, options: Options, script: Sequence[str], name: str = ""
) -> "AlignedRecording":
    """A recording, to be aligned with the lines of a script; otherwise as `make_recording`."""
    from slimwhisper.recordings.aligned import AlignedRecording

    for refused in NOT_ALIGNED:
        if getattr(options, refused):
            raise OptionError(f"{refused} cannot be used to align a text; leave it out")
    options = replace(options, word_timestamps=True, word_times="fine", drop=())
    return AlignedRecording(make_recording(samples, model, options, name), script)


def load_recording(
    source: AudioSource, model: Model, options: Options, script: Sequence[str] = (), **reading: Any
) -> AnyRecording:
    """Read a recording for a model. script: lines to align with it. reading: arguments of
    `load_samples`. Raises AudioError, and what `make_recording` raises.
    """
    name, reading["audio_track"] = stem_of(source), options.audio_track
    if options.channels is not None and not script:
        channels = load_channels(source, options.channel_names, **reading)
        return split_recording(channels, model, options, name)
    samples = load_samples(source, **reading)
    if script:
        return aligned_recording(samples, model, options, script, name)
    return make_recording(samples, model, options, name)


Source = TypeVar("Source")
Loaded = TypeVar("Loaded")
Outcome = Transcript | SlimWhisperError


class RecordingSource(SessionSource):
    """A recording as a source of sessions. Its news are segments and the seconds done so far."""

    def __init__(self, recording: AnyRecording) -> None:
        self.recording = recording

    def next_window(self) -> tuple[Any, Window] | None:
        """The first window of the next session."""
        while (session := self.recording.next_session()) is not None:
            if isinstance(session.request, Window):
                return session, session.request
        return None

    def accept(self, session: Exchange, answer: Answer) -> Request | None:
        """Pass an answer to its session."""
        return session.accept(answer)

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


class Loader(Generic[Source, Loaded]):
    """Runs `load` on sources in other threads; returns the results in the sources' order.

    One thread reads the sources, so a slow iterator does not block the caller. At most `ahead` are
    read before the first of them is returned, which bounds memory and open files.
    """

    def __init__(
        self, sources: Iterable[Source], load: Callable[[Source], Loaded], ahead: int, workers: int
    ) -> None:
        """workers: threads."""
        self.exhausted = False  # no results are left; known once `next` has returned None
        self._load, self._process = load, os.getpid()
        self._slots = threading.Semaphore(ahead)
        self._pool = ThreadPoolExecutor(workers, "slimwhisper-load", initializer=use_threads)
        # the last item is what the sources' iterator raised, usually StopIteration
        self._items: deque[tuple[Source, Future[Loaded]] | BaseException] = deque()
        self._count = threading.Semaphore(0)  # of the items
        self._closed = False
        # a daemon: it may wait for an iterator that never ends
        threading.Thread(target=self._submit_all, args=(sources,), daemon=True).start()

    def _submit_all(self, sources: Iterable[Source]) -> None:
        try:
            iterator = iter(sources)
            while self._slots.acquire() and not self._closed:
                source = next(iterator)
                self._items.append((source, self._pool.submit(self._load, source)))
                self._count.release()
        except BaseException as problem:
            self._items.append(problem)
            self._count.release()

    def next(self, block: bool) -> tuple[Source, Loaded | SlimWhisperError] | None:
        """The next source and its result; None if it is not ready and `block` is False, or at the
        end. Raises what the sources' iterator raised.
        """
        item = self._items[0] if self._items else None
        is_ready = isinstance(item, BaseException) or (item is not None and item[1].done())
        if self.exhausted or not (block or is_ready):
            return None
        if not is_ready and os.getpid() != self._process:
            raise SlimWhisperError("nobody reads ahead after a fork; transcribe again in the child")
        self._count.acquire()
        item = self._items.popleft()
        if isinstance(item, BaseException):
            self.exhausted = True
            if not isinstance(item, StopIteration):
                raise item
            return None
        source, future = item
        outcome: Loaded | SlimWhisperError
        try:
            outcome = future.result()
        except Exception as error:  # one bad recording must not end a job of thousands
            outcome = wrap_unexpected(error, "cannot be read: ")
        self._slots.release()
        return source, outcome

    def close(self, discard: Callable[[Loaded], Any]) -> None:
        """Stop. Results not yet returned, loaded or still loading, are passed to `discard`."""
        self._closed = True
        self._slots.release()
        self._pool.shutdown(wait=False, cancel_futures=True)

        def drop(future: "Future[Loaded]") -> None:
            if not future.cancelled() and future.exception() is None:
                discard(future.result())

        for item in list(self._items):
            if not isinstance(item, BaseException):
                item[1].add_done_callback(drop)


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
        OptionError for a single recording and if there is too little memory, and what else ends the
        engine.
    """
    if isinstance(sources, str | bytes) or hasattr(sources, "__fspath__"):
        raise OptionError(f"{sources!r:.99}: give a list of recordings, also of a single one")
    workers = readers.count or WORKERS
    with Call(transcriber, search_of(options), slots) as call, closing(readers):
        call.steps = callbacks.on_step is not None
        loader = Loader(sources, load, ahead=workers + 1, workers=workers)
        try:
            while call.submissions or call.events or not loader.exhausted:
                while call.fill():
                    loaded = loader.next(block=not (call.submissions or call.events))
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
