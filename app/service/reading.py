"""The recordings of jobs, read ahead by other threads and processes; and how much of those that are
read, and not transcribed yet, is kept, over all jobs.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, Limits
from slimwhisper.audio.read_ahead import WORKERS
from slimwhisper.audio.readers import Readers
from slimwhisper.audio.samples import SPOOL_SECONDS, Samples
from slimwhisper.errors import AudioError
from slimwhisper.longform.recording import Recording
from slimwhisper.types import SAMPLE_RATE

DEFAULTS = {"on_failure": "best"}  # options of every job, where they differ from `Options`
LONGEST_VOICE = 60  # seconds of a recording that belongs to no job
IN_MEMORY = SPOOL_SECONDS * SAMPLE_RATE  # samples: a longer recording is kept on disk
DISK_SECONDS = 3600  # for each slot, besides the two longest recordings


class EndedError(Exception):
    """The job has ended: nobody wants its recording."""


class NoRoomError(Exception):
    """The recording does not fit beside those that are kept; it is to be read again later."""


class Room:
    """Samples in memory and on disk, and whose they are. Any thread may call.

    A user who has other jobs in flight gets half of the room, so that the rest is for the others.
    Nobody waits while reading: a recording that turns out to be longer than there is room for is
    dropped, and read again once the longest would fit. So those that are kept can always end, and
    short recordings pass.
    """

    def __init__(self, seconds: float) -> None:
        """seconds: of the longest recording."""
        self.slots = 1
        self._longest = int(seconds * SAMPLE_RATE)
        self._held: dict[Job, int] = {}  # samples
        self._again: set[Job] = set()  # that had no room
        self._lock = Lock()

    def admit(self, job: Job) -> bool:
        """Whether a job's recording may be read now; if so, it has room until `release`."""
        with self._lock:
            samples = self._longest if job in self._again else min(self._longest, IN_MEMORY)
            memory = self._share(job) * self.slots * IN_MEMORY
            kept = sum(held for held in self._held.values() if held <= IN_MEMORY)
            if kept > memory or not self._fits(job, samples):
                return False
            self._again.discard(job)
            self._held[job] = samples
            return True

    def keep(self, job: Job, samples: int, whole: bool = False) -> None:
        """Make room for so many samples of a recording that is being read. whole: it has no more,
        and gives the rest of its room back. Raises EndedError, NoRoomError.
        """
        with self._lock:
            if job.ended or job not in self._held:  # released meanwhile
                raise EndedError
            if samples > self._held[job] and (self._again or not self._fits(job, samples)):
                self._again.add(job)
                raise NoRoomError
            if whole or samples > self._held[job]:
                self._held[job] = samples

    def release(self, job: Job) -> None:
        """A job's recording is gone. No effect if it has no room."""
        with self._lock:
            if job.ended:
                self._again.discard(job)
            self._held.pop(job, None)

    def _share(self, job: Job) -> int:
        """How many halves of the room a job's user may have."""
        others = any(other.user == job.user for other in self._held if other is not job)
        return 1 if others else 2

    def _fits(self, job: Job, samples: int) -> bool:
        disk = self._longest + self.slots * DISK_SECONDS * SAMPLE_RATE // 2  # half of it
        held = (n for other, n in self._held.items() if other is not job and n > IN_MEMORY)
        return samples <= IN_MEMORY or sum(held) + samples <= self._share(job) * disk


class Reading:
    """The jobs whose recordings are being read. `read` is for any thread, the rest for one."""

    def __init__(self, limits: Limits) -> None:
        self.room = Room(limits.seconds)
        self._readers = Readers(WORKERS, limits.seconds, limits.reading)
        self._pool = ThreadPoolExecutor(WORKERS, "slimwhisper-read")
        self._futures: dict[Job, Future[Recording]] = {}

    def begin(self, job: Job, model: SlimWhisper) -> None:
        """Read a job's recording in another thread."""
        self._futures[job] = self._pool.submit(self._read, job, model)

    def done(self) -> "Iterator[tuple[Job, Future[Recording]]]":
        """The jobs whose recording has been read, or cannot be; each once."""
        for job, future in list(self._futures.items()):
            if future.done():
                del self._futures[job]
                yield job, future

    def drop(self, job: Job) -> None:
        """Forget a job: what reads it stops, and its room is free."""
        self.room.release(job)
        future = self._futures.pop(job, None)
        if future is not None:
            future.cancel()
            future.add_done_callback(_close_unused)

    def read(self, path: Path, name: str) -> Samples:
        """The samples of a short file, by a reader process; waits. `name` stands for it in
        messages.

        Raises AudioError.
        """

        def keep(samples: int) -> None:
            if samples > LONGEST_VOICE * SAMPLE_RATE:
                raise AudioError(f"{name}: longer than {LONGEST_VOICE} s")

        return self._readers.read(path, name, keep=keep)

    def close(self) -> None:
        """End the processes and threads."""
        self._readers.close()
        self._pool.shutdown(cancel_futures=True)

    def _read(self, job: Job, model: SlimWhisper) -> Recording:
        """In a reading thread: a job's recording, its samples from a reader process."""
        options = model.make_options(job.model.shown, **(DEFAULTS | job.options))
        samples = self._readers.read(job.path, job.name, keep=partial(self.room.keep, job))
        try:
            self.room.keep(job, len(samples), whole=True)
            wanted = _Wanted(samples, job)
            job.show(wanted)
            return Recording(wanted, model.dims, options, model.network.vocabulary)
        except BaseException:
            samples.close()
            raise


class _Wanted:
    """A job's samples, until it ends: what computes with them then ends, too."""

    def __init__(self, samples: Samples, job: Job) -> None:
        self._samples, self._job = samples, job

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32. Raises EndedError."""
        if self._job.ended:
            raise EndedError
        return self._samples.read(start, stop)

    def close(self) -> None:
        self._samples.close()


def _close_unused(future: "Future[Recording]") -> None:
    """Close the recording of a job that ended while it was being read."""
    if not future.cancelled() and future.exception() is None:
        future.result().close()
