"""The recordings of jobs, read ahead by other threads and processes."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, Limits
from slimwhisper.app.service.room import EndedError, Room
from slimwhisper.audio.read_ahead import WORKERS
from slimwhisper.audio.readers import Readers
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import AudioError
from slimwhisper.longform.recording import Recording
from slimwhisper.types import SAMPLE_RATE

DEFAULTS = {"on_failure": "best"}  # options of every job, where they differ from `Options`
LONGEST_VOICE = 60  # seconds of a recording that belongs to no job


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
            self.room.settle(job, len(samples))
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
