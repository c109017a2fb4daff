"""The engine of all models in this process with the same checkpoint, device and dtype: recordings
of several threads are decoded side by side, by the service that `slimwhisper serve` uses too.
"""

import atexit
import queue
import threading
import weakref
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import (
    Event,
    Job,
    JobFailed,
    JobFinished,
    Limits,
    ModelChoice,
    Progress,
)
from slimwhisper.app.service.service import Service
from slimwhisper.audio.samples import Samples
from slimwhisper.audio.threads import set_threads
from slimwhisper.faster_whisper.types import Segment, Word
from slimwhisper.loading import load_model
from slimwhisper.longform.recording import Recording
from slimwhisper.text import SafeStream
from slimwhisper.types import Segment as OurSegment

NO_LIMITS = Limits(queue=1_000_000, seconds=1e9)


class EngineKey(NamedTuple):
    """What models that share an engine have in common."""

    name: str
    device: str | None
    dtype: str | None
    download_root: str | None
    local_files_only: bool
    threads: int  # as in `set_threads`


class SharedService:
    """A model and its engine; they are freed with the last `WhisperModel` and iterator."""

    def __init__(self, key: EngineKey) -> None:
        self.choice = ModelChoice(key.name)
        self.service = Service(lambda _: _load(key), limits=NO_LIMITS, first=self.choice)
        _services.add(self.service)
        weakref.finalize(self, self.service.stop)
        self.service.first.result()
        model = self.service.engines.model
        assert model is not None
        self.model: SlimWhisper = model

    def begin(
        self, samples: Samples, options: dict[str, Any], log_progress: bool
    ) -> "SegmentIterator":
        """Start to transcribe; waits until the language is known. options: of
        `slimwhisper.Options`. Raises OptionError and what else ends a job.
        """
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        user = str(threading.get_ident())  # threads take turns
        job = Job(Path(), "audio", self.choice, options, user, events.put, samples=samples)
        self.service.submit(job)
        return SegmentIterator(self, job, events, log_progress)


_shared: "weakref.WeakValueDictionary[EngineKey, SharedService]" = weakref.WeakValueDictionary()
_services: "weakref.WeakSet[Service]" = weakref.WeakSet()  # whose threads may still run
_lock = threading.Lock()


@atexit.register
def _close_all() -> None:
    """PyTorch ends the process with an error if a thread uses it until the end."""
    for service in list(_services):
        service.close()


def shared_service(key: EngineKey) -> SharedService:
    """The service for a key, made on first use. Raises the errors of `load_model`."""
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = SharedService(key)
        return shared


def _load(key: EngineKey) -> SlimWhisper:
    """Runs in the service's thread, whose number of threads it sets."""
    set_threads(max(0, key.threads))
    return load_model(
        key.name,
        key.device,
        key.download_root,
        dtype=key.dtype,
        local_files_only=key.local_files_only,
    )


class SegmentIterator(Iterator[Segment]):
    """The segments of one recording, each as soon as it is decoded. Dropping it, or `close`, ends
    the work.
    """

    def __init__(
        self,
        shared: SharedService,
        job: Job,
        events: "queue.SimpleQueue[Event]",
        log_progress: bool,
    ) -> None:
        """Waits until the recording's language is known."""
        self._job, self._events, self._shared = job, events, shared
        self._ready: list[Segment] = []
        self._count, self._ended = 0, False
        err = SafeStream("stderr")
        self._bar = tqdm(unit="seconds", disable=not log_progress, file=err, dynamic_ncols=True)
        self.close = weakref.finalize(self, shared.service.cancel, job)
        self.close.atexit = False
        while not self._ended and not self._language_known:
            self._receive()
        recording = job.recording
        assert isinstance(recording, Recording)
        self.recording: Recording = recording
        self._bar.reset(round(recording.seconds, 2))

    @property
    def _language_known(self) -> bool:
        recording = self._job.recording
        return isinstance(recording, Recording) and recording.sessions[0].language is not None

    def __next__(self) -> Segment:
        """Raises what ended the job, if it failed."""
        while not self._ready:
            if self._ended:
                raise StopIteration
            self._receive()
        return self._ready.pop(0)

    def _receive(self) -> None:
        """Wait for one event."""
        match self._events.get():
            case Progress(segments, done):
                self._ready += [self._converted(s) for s in segments if _is_kept(s)]
                self._bar.update(round(done, 2) - self._bar.n)
            case JobFinished() | JobFailed() as ended:
                self._ended = True
                self._bar.close()
                if isinstance(ended, JobFailed):
                    raise ended.error

    def _converted(self, segment: OurSegment) -> Segment:
        self._count += 1
        words = None
        if segment.words is not None:
            words = [Word(w.start, w.end, w.word, w.probability) for w in segment.words]
        same = {field.name: getattr(segment, field.name) for field in fields(Segment)}
        return Segment(**same | {"id": self._count, "words": words})


def _is_kept(segment: OurSegment) -> bool:
    """faster-whisper leaves out segments without text or length, which `whisper` keeps."""
    return bool(segment.text.strip()) and segment.start != segment.end
