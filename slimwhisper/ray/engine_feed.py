"""Feeds recordings from any thread to one running engine, and returns each result when it is ready.

The engine's thread runs one `transcribe_many` whose sources come from a queue. So slots are filled
again while earlier results are returned, until `close`.
"""

import io
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.addresses import is_uri
from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import AudioSource, as_waveform, load_channels
from slimwhisper.audio.sources import RemoteFile
from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.members import HeldFile
from slimwhisper.storage.stores import StoredFile
from slimwhisper.types import SAMPLE_RATE, Transcript


@dataclass(slots=True)
class FeedCounts:
    """The counters of one engine; only its thread writes them. Names as in the server's."""

    finished: int = 0
    failed: int = 0
    audio_seconds: float = 0.0  # of finished recordings
    busy_seconds: float = 0.0  # that the engine worked
    steps: int = 0  # of the engine
    filled_slots: int = 0  # in use, summed over the steps
    slots: int = 0

    @property
    def fill(self) -> float:
        """The share of the slots in use, mean over all steps."""
        return self.filled_slots / (self.steps * self.slots) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class FeedResult:
    """The result of a recording."""

    result: Transcript | SlimWhisperError
    seconds: float | None  # of audio; None: it could not be read


class EngineFeed:
    """Feeds a model's engine. Any thread may call."""

    def __init__(
        self,
        model: SlimWhisper,
        slots: int | None = None,
        *,
        allow_truncated: bool = False,
        loaders: int | None = 0,
        **options: Any,
    ) -> None:
        """slots: windows decoded together; None: `default_batch_size`. The other arguments are
        those of `transcribe_many`. Raises OptionError.
        """
        self._split = options.get("channels") is not None
        self.slots = slots or model.default_batch_size(**options)
        self.counts = FeedCounts()
        self._queue: queue.SimpleQueue[AudioSource | None] = queue.SimpleQueue()
        # by id of the source: each call has its own object, which this reference keeps alive
        self._futures: dict[int, tuple[AudioSource, Future[FeedResult]]] = {}
        self._seconds: dict[int, float] = {}
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._outcomes = model.transcribe_many(
            self._sources(),
            batch_size=self.slots,
            allow_truncated=allow_truncated,
            loaders=loaders,
            on_duration=lambda source, seconds: self._seconds.update({id(source): seconds}),
            on_step=self._on_step,
            **options,
        )
        self._thread = threading.Thread(target=self._run, name="slimwhisper-engine", daemon=True)
        self._thread.start()

    def submit(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> "Future[FeedResult]":
        """Feed a recording: a path or URI, a remote file, a file's bytes, or samples at
        `sample_rate` Hz.

        The future raises only an error that ended the engine. Raises AudioError for invalid
        samples, and OptionError or DependencyError for a URI of a kind that cannot be read.
        """
        recording: AudioSource
        if isinstance(source, bytes):
            recording = io.BytesIO(source)
        elif isinstance(source, str) and is_uri(source):
            recording = StoredFile.at(source)
        elif isinstance(source, str | PathLike):
            recording = Path(source)
        elif isinstance(source, RemoteFile):
            recording = source if isinstance(source, HeldFile) else copy(source)
        else:
            read = _channels if self._split else as_waveform
            recording = read(source, sample_rate=sample_rate)[:]  # a new object: a view
        future: Future[FeedResult] = Future()
        with self._lock:
            if self._error is not None:
                raise RuntimeError("the engine has ended") from self._error
            self._futures[id(recording)] = (recording, future)
        self._queue.put(recording)
        return future

    @property
    def waiting(self) -> int:
        """The number of submitted recordings that have not ended."""
        return len(self._futures)

    def close(self) -> None:
        """End the engine after all submitted recordings."""
        self._queue.put(None)
        self._thread.join()

    # -- on the engine's thread, or on the thread that reads the sources ---------------------------

    def _sources(self) -> Iterator[AudioSource]:
        while (source := self._queue.get()) is not None:
            yield source

    def _run(self) -> None:
        ended: BaseException = RuntimeError("the engine was closed")
        try:
            for source, result in self._outcomes:
                seconds = self._seconds.pop(id(source), None)
                if isinstance(result, SlimWhisperError):
                    self.counts.failed += 1
                else:
                    self.counts.finished += 1
                    self.counts.audio_seconds += seconds or 0.0
                self._futures.pop(id(source))[1].set_result(FeedResult(result, seconds))
        except BaseException as error:  # the engine's own error, not a recording's
            ended = error
        with self._lock:
            self._error = ended
        for _, future in self._futures.values():
            future.set_exception(ended)

    def _on_step(self, filled: int, slots: int, seconds: float) -> None:
        counts = self.counts
        counts.steps += 1
        counts.filled_slots += filled
        counts.slots = slots
        counts.busy_seconds += seconds


def _channels(source: AudioSource, sample_rate: int) -> NDArray[np.float32]:
    """The channels of samples at `sample_rate` Hz: float32 [channels, n] at 16 kHz."""
    channels = load_channels(source, sample_rate=sample_rate).values()
    return np.stack([channel.read(0, len(channel)) for channel in channels])
