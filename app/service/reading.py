"""Reads the recordings of jobs ahead, in other threads and processes, and limits how many samples
of all jobs wait to be transcribed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, Limits
from slimwhisper.audio.samples import (
    SPOOL_SECONDS,
    ReadOptions,
    Samples,
    channels_of,
    named_channels,
)
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.cores import WORKERS
from slimwhisper.errors import AudioError, warnings_to
from slimwhisper.recordings.transcribe import (
    AnyRecording,
    aligned_recording,
    make_recording,
    split_recording,
)
from slimwhisper.types import SAMPLE_RATE

READERS = max(2, WORKERS)  # a file that takes long to read must not hold up all others
# options of every job, where they differ from `Options`
DEFAULTS: dict[str, Any] = {"on_failure": "best"}
LONGEST_VOICE = 60  # seconds of a known speaker's recording
IN_MEMORY = SPOOL_SECONDS * SAMPLE_RATE  # samples: a longer recording is stored on disk
DISK_SECONDS = 3600  # per slot, besides the two longest recordings


class JobSamples:
    """The mean of channels of equal length, or the only one. They end with the job: later reads
    raise, to stop what computes on them.
    """

    def __init__(self, channels: Sequence[Samples], job: Job) -> None:
        self._channels, self._job = channels, job
        self.silences = channels[0].silences  # of all channels

    def __len__(self) -> int:
        return len(self._channels[0])

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32. Raises EndedError."""
        if self._job.ended:
            raise EndedError
        parts = [channel.read(start, stop) for channel in self._channels]
        return parts[0] if len(parts) == 1 else np.mean(parts, axis=0, dtype=np.float32)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class EndedError(Exception):
    """The job has ended, so its recording is not needed."""


class NoRoomError(Exception):
    """The recording does not fit in the store now; it is to be read again later."""


class SampleStore:
    """Accounts for the jobs' samples in memory and on disk. Any thread may call.

    A user with other jobs in flight gets half of the room, so that the rest is for other users.
    Reading never waits for room: a recording that turns out to be longer than the room is dropped,
    and read again once the longest possible one would fit. So stored recordings can always be
    transcribed to their end, and short recordings are not held up by long ones.
    """

    def __init__(self, seconds: float) -> None:
        """seconds: of the longest recording."""
        self.slots = 1
        self._longest = int(seconds * SAMPLE_RATE)
        self._reserved: dict[Job, int] = {}  # samples
        self._retry: set[Job] = set()  # jobs that had no room
        self._lock = Lock()

    def admit(self, job: Job) -> bool:
        """Whether a job's recording may be read now; if so, room is reserved until `release`."""
        with self._lock:
            samples = self._longest if job in self._retry else min(self._longest, IN_MEMORY)
            memory = self._share(job) * self.slots * IN_MEMORY
            in_memory = sum(n for n in self._reserved.values() if n <= IN_MEMORY)
            if in_memory > memory or not self._fits(job, samples):
                return False
            self._retry.discard(job)
            self._reserved[job] = samples
            return True

    def reserve(self, job: Job, samples: int, whole: bool = False) -> None:
        """Reserve room for `samples` of a recording that is being read. whole: that is all of it,
        and the rest of its room is released. Raises EndedError, NoRoomError.
        """
        with self._lock:
            if job.ended or job not in self._reserved:  # released meanwhile
                raise EndedError
            if samples > self._reserved[job] and (self._retry or not self._fits(job, samples)):
                self._retry.add(job)
                raise NoRoomError
            if whole or samples > self._reserved[job]:
                self._reserved[job] = samples

    def release(self, job: Job) -> None:
        """Release a job's room. No effect if it has none."""
        with self._lock:
            if job.ended:
                self._retry.discard(job)
            self._reserved.pop(job, None)

    def _share(self, job: Job) -> int:
        """How many halves of the room a job's user may use."""
        others = any(other.user == job.user for other in self._reserved if other is not job)
        return 1 if others else 2

    def _fits(self, job: Job, samples: int) -> bool:
        disk = self._longest + self.slots * DISK_SECONDS * SAMPLE_RATE // 2  # half of it
        on_disk = (n for other, n in self._reserved.items() if other is not job and n > IN_MEMORY)
        return samples <= IN_MEMORY or sum(on_disk) + samples <= self._share(job) * disk


class Reading:
    """The jobs whose recordings are being read. Any thread may call `read`, one thread the rest."""

    def __init__(self, limits: Limits, defaults: Mapping[str, Any]) -> None:
        """defaults: options of every job, which its own replace."""
        self._defaults = {**DEFAULTS, **defaults}
        self.store = SampleStore(limits.seconds)
        self._readers = Readers(READERS, limits.seconds, limits.reading)
        self._pool = ThreadPoolExecutor(READERS, "slimwhisper-read")
        self._futures: dict[Job, Future[AnyRecording]] = {}

    def begin(self, job: Job, model: SlimWhisper) -> None:
        """Read a job's recording in another thread."""
        self._futures[job] = self._pool.submit(self._read, job, model)

    def done(self) -> "Iterator[tuple[Job, Future[AnyRecording]]]":
        """The jobs whose recording has been read or has failed; each once."""
        for job, future in list(self._futures.items()):
            if future.done():
                del self._futures[job]
                yield job, future

    def drop(self, job: Job) -> None:
        """Discard a job: stop reading its recording, and release its room."""
        self.store.release(job)
        future = self._futures.pop(job, None)
        if future is not None:
            future.cancel()
            future.add_done_callback(_close_unused)

    def read(self, path: Path, name: str) -> Samples:
        """The samples of a short file, read by a reader process; blocks. Messages call it `name`.

        Raises AudioError.
        """

        def keep(samples: int) -> None:
            if samples > LONGEST_VOICE * SAMPLE_RATE:
                raise AudioError(f"{name}: longer than {LONGEST_VOICE} s; send a shorter one")

        return self._readers.read(path, name, ReadOptions(None), on_samples=keep)

    def close(self) -> None:
        """End the processes and threads."""
        self._readers.close()
        self._pool.shutdown(cancel_futures=True)

    def _read(self, job: Job, model: SlimWhisper) -> AnyRecording:
        """Read a job's recording, by a reader process. Runs in a reading thread."""
        job.warnings.clear()  # it may have been read before, without room for it
        warnings_to.set(job.warnings.append)
        chosen = self._defaults | job.options
        if not job.options.get("diarize") and "known_speakers" not in job.options:
            # the server's are for those who ask for speakers
            chosen.pop("known_speakers", None)
        options = model.make_options(job.model.display_name, **chosen)
        split = options.channels is not None and not job.script  # `Recording` refuses both
        reserve = partial(self.store.reserve, job)
        how = ReadOptions(None, split, options.audio_track)
        samples = self._readers.read(job.path, job.name, how, on_samples=reserve)
        try:
            self.store.reserve(job, len(samples), whole=True)
            parts = channels_of(samples)
            named = _split(parts, options.channel_names, job) if split else {}
            if not named:
                job_samples = JobSamples(parts if split else [samples], job)
                job.emit_samples(job_samples)
                if job.script:
                    return aligned_recording(job_samples, model.network, options, job.script)
                return make_recording(job_samples, model.network, options)
            job.channels = len(named)
            channels = {name: JobSamples([channel], job) for name, channel in named.items()}
            job.emit_samples(JobSamples(list(channels.values()), job))
            return split_recording(channels, model.network, options)
        except BaseException:
            samples.close()
            raise


def _split(parts: Sequence[Samples], names: Sequence[str], job: Job) -> dict[str, Samples]:
    """The channels of a job's recording by their names; {}: they are to be mixed. Raises
    AudioError.
    """
    try:
        return named_channels(parts, names, job.name)
    except AudioError as error:
        if not job.mix_instead:
            raise
        job.warnings.append(str(error).partition(";")[0])
        return {}


def _close_unused(future: "Future[AnyRecording]") -> None:
    """Close the recording of a job that ended while it was being read."""
    if not future.cancelled() and future.exception() is None:
        future.result().close()
