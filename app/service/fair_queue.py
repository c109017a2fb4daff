"""The queue of jobs: users take turns at having a recording read."""

from collections import Counter
from collections.abc import Callable, Iterator

from slimwhisper.app.service.jobs import Job, JobState
from slimwhisper.audio.read_ahead import WORKERS

AHEAD = 2 * WORKERS  # recordings read ahead, whatever their size
AHEAD_BYTES = 32 << 20  # up to this size, more are read ahead, so that a step can fill all slots


class Jobs:
    """The jobs in flight, in the order of the queue.

    Changing it needs the service's lock; reading it does not.
    """

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self.cancelled: set[Job] = set()  # since the service last looked

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs))

    def enqueue(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        job.state = JobState.WAITING
        self._jobs.pop(job, None)
        self._jobs[job] = None

    def drop(self, job: Job) -> None:
        """Remove a job that has ended. No effect if it was removed before."""
        self._jobs.pop(job, None)

    def in_state(self, state: JobState) -> list[Job]:
        """The jobs in a state."""
        return [job for job in self if job.state is state]

    def states(self) -> dict[str, int]:
        """The number of jobs in each state."""
        return {s.value: len(self.in_state(s)) for s in JobState if s is not JobState.ENDED}

    def position(self, job: Job) -> int:
        """A job's position in the queue, from 1; 0 if it is no longer waiting."""
        waiting = self.in_state(JobState.WAITING)
        return 1 + waiting.index(job) if job in waiting else 0

    def next_to_read(self, slots: int, admit: Callable[[Job], bool]) -> list[Job]:
        """The jobs to read next, all for one model.

        Users with the fewest jobs in progress come first. A different model has to wait until all
        jobs for the current one have ended. admit: reserves room for a job's recording, and returns
        whether there is room.
        """
        chosen: list[Job] = []
        waiting = self.in_state(JobState.WAITING)
        busy = [job for job in self if job.state is not JobState.WAITING]
        while waiting and _may_read(busy, slots) and (busy or waiting)[0].model == waiting[0].model:
            users = Counter(job.user for job in busy)
            same = [job for job in waiting if job.model == waiting[0].model]
            job = next(filter(admit, sorted(same, key=lambda job: users[job.user])), None)
            if job is None:
                break
            job.state = JobState.READING
            waiting.remove(job)
            busy.append(job)
            chosen.append(job)
        return chosen


def _may_read(busy: list[Job], slots: int) -> bool:
    """Whether to read one more recording, besides those of `busy` that are being read."""
    ahead = [job for job in busy if job.state is JobState.READING]
    if len(ahead) < AHEAD:
        return True
    return len(ahead) < slots and sum(job.size for job in ahead) < AHEAD_BYTES
