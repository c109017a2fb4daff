"""Recordings from any thread -> one running engine -> results, each when it is ready.

The engine's thread runs one `transcribe_many` whose sources come from a queue. So slots are filled
again while earlier results leave, and nothing ends a batch but `close`.
"""

import io
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import AudioSource, as_waveform
from slimwhisper.audio.remote import RemoteFile
from slimwhisper.errors import SlimWhisperError
from slimwhisper.ray.results import FeedCounts
from slimwhisper.storage.files import StoredFile
from slimwhisper.storage.uris import is_uri
from slimwhisper.types import SAMPLE_RATE, Transcript


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of a recording."""

    result: Transcript | SlimWhisperError
    seconds: float | None  # of audio; None: it could not be read


class _Path(PathLike[str]):
    """A path that is equal to itself only: the same file may be fed twice."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


class Feed:
    """Feeds a model's engine. Any thread may call."""

    def __init__(
        self,
        model: SlimWhisper,
        *,
        batch_size: int | None = None,
        allow_truncated: bool = False,
        loaders: int | None = 0,
        **options: Any,
    ) -> None:
        """Arguments as of `transcribe_many`. Raises OptionError."""
        self.counts = FeedCounts()
        self._queue: queue.SimpleQueue[AudioSource | None] = queue.SimpleQueue()
        # by the identity of the source, of which each call has its own, kept here
        self._futures: dict[int, tuple[AudioSource, Future[Heard]]] = {}
        self._seconds: dict[int, float] = {}
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        outcomes = model.transcribe_many(
            self._sources(),
            batch_size=batch_size,
            allow_truncated=allow_truncated,
            loaders=loaders,
            on_duration=self._on_duration,
            on_step=self._on_step,
            **options,
        )
        self._thread = threading.Thread(
            target=self._run, args=(outcomes,), name="slimwhisper-engine", daemon=True
        )
        self._thread.start()

    def submit(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> "Future[Heard]":
        """Feed a recording: a path or URI, a remote file, a file's bytes, or samples at
        `sample_rate` Hz.

        The future raises only what ended the engine. Raises what reading samples raises, and
        OptionError or DependencyError for a URI of a kind that cannot be read.
        """
        own: AudioSource
        if isinstance(source, bytes):
            own = io.BytesIO(source)
        elif isinstance(source, str) and is_uri(source):
            own = StoredFile.at(source)
        elif isinstance(source, str | PathLike):
            own = _Path(fspath(source))
        elif isinstance(source, RemoteFile):
            own = copy(source)
        elif hasattr(source, "read"):
            own = source
        else:
            own = as_waveform(source, sample_rate=sample_rate)[:]  # a view of its own
        future: Future[Heard] = Future()
        with self._lock:
            if self._error is not None:
                raise RuntimeError("the engine has ended") from self._error
            self._futures[id(own)] = (own, future)
        self._queue.put(own)
        return future

    @property
    def waiting(self) -> int:
        """Recordings fed that have not ended."""
        return len(self._futures)

    def close(self) -> None:
        """End the engine when it has done all that was fed."""
        self._queue.put(None)
        self._thread.join()

    # -- on the engine's thread, or on the one that takes the sources ------------------------------

    def _sources(self) -> Iterator[AudioSource]:
        while (source := self._queue.get()) is not None:
            yield source

    def _run(self, outcomes: Iterator[tuple[AudioSource, Transcript | SlimWhisperError]]) -> None:
        ended: BaseException = RuntimeError("the engine was closed")
        try:
            for source, result in outcomes:
                self._give(source, result)
        except BaseException as error:  # the engine's own: no recording's fault that is known
            ended = error
        with self._lock:
            self._error = ended
            left = list(self._futures.values())
            self._futures.clear()
        for _, future in left:
            future.set_exception(ended)

    def _give(self, source: AudioSource, result: Transcript | SlimWhisperError) -> None:
        seconds = self._seconds.pop(id(source), None)
        if isinstance(result, SlimWhisperError):
            self.counts.failed += 1
        else:
            self.counts.finished += 1
            self.counts.audio_seconds += seconds or 0.0
        with self._lock:
            _, future = self._futures.pop(id(source))
        future.set_result(Heard(result, seconds))

    def _on_duration(self, source: AudioSource, seconds: float) -> None:
        self._seconds[id(source)] = seconds

    def _on_step(self, filled: int, slots: int, seconds: float) -> None:
        counts = self.counts
        counts.steps += 1
        counts.filled += filled
        counts.slots = slots
        counts.busy_seconds += seconds
