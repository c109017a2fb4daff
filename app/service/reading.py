"""The recordings of jobs, read ahead by other threads and processes."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, Limits
from slimwhisper.audio.read_ahead import WORKERS
from slimwhisper.audio.readers import Readers
from slimwhisper.audio.samples import Samples
from slimwhisper.longform.recording import Recording

DEFAULTS = {"on_failure": "best"}  # options of every job, where they differ from `Options`


class Reading:
    """The jobs whose recordings are being read. `read` is for any thread, the rest for one."""

    def __init__(self, limits: Limits) -> None:
        self._readers = Readers(WORKERS, limits.seconds, limits.reading)
        self._pool = ThreadPoolExecutor(WORKERS, "slimwhisper-read")
        self._futures: dict[Job, Future[Recording]] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, job: object) -> bool:
        return job in self._futures

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
        """Forget a job; no effect on one that is not being read."""
        future = self._futures.pop(job, None)
        if future is not None:
            future.cancel()
            future.add_done_callback(_close_unused)

    def read(self, path: Path, name: str) -> Samples:
        """A file's samples, by a reader process; waits. `name` stands for it in messages.

        Raises AudioError.
        """
        return self._readers.read(path, name)

    def close(self) -> None:
        """End the processes and threads."""
        self._readers.close()
        self._pool.shutdown(cancel_futures=True)

    def _read(self, job: Job, model: SlimWhisper) -> Recording:
        """In a reading thread: a job's recording, its samples from a reader process."""
        options = model.make_options(job.model.shown, **(DEFAULTS | job.options))
        samples = self._readers.read(job.path, job.name)
        job.show(samples)
        return Recording(samples, model.dims, options, model.network.vocabulary)


def _close_unused(future: "Future[Recording]") -> None:
    """Close the recording of a job that ended while it was being read."""
    if not future.cancelled() and future.exception() is None:
        future.result().close()
