"""The order in which recordings are read: users take turns."""

from collections import Counter
from collections.abc import Callable, Iterator

from slimwhisper.app.service.jobs import Job, State
from slimwhisper.audio.read_ahead import WORKERS

AHEAD = 2 * WORKERS  # recordings read ahead, whatever their size
AHEAD_BYTES = 32 << 20  # more are read ahead, up to this size, so that a step can fill all slots


class Jobs:
    """The jobs in flight, in the order in which they wait.

    Whoever changes it holds the service's lock; to look at it, nobody needs to.
    """

    def __init__(self) -> None:
        self._found: dict[Job, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._found))

    def wait(self, job: Job) -> None:
        """A job waits to be read, after all others."""
        job.state = State.WAITING
        self._found.pop(job, None)
        self._found[job] = None

    def drop(self, job: Job) -> None:
        """A job has ended. No effect if it has already."""
        self._found.pop(job, None)

    def having(self, state: State) -> list[Job]:
        """The jobs in a state."""
        return [job for job in self if job.state is state]

    def next(self, slots: int, admit: Callable[[Job], bool]) -> list[Job]:
        """The jobs to read next, all for one model.

        Users with the fewest jobs in work come first. A different model has to wait until all jobs
        for the current one have ended. admit: whether there is room for a job's recording, which it
        then has.
        """
        taken: list[Job] = []
        waiting = self.having(State.WAITING)
        busy = [job for job in self if job.state is not State.WAITING]
        while waiting and _may_read(busy, slots) and (busy or waiting)[0].model == waiting[0].model:
            users = Counter(job.user for job in busy)
            same = [job for job in waiting if job.model == waiting[0].model]
            job = next(filter(admit, sorted(same, key=lambda job: users[job.user])), None)
            if job is None:
                break
            job.state = State.READING
            waiting.remove(job)
            busy.append(job)
            taken.append(job)
        return taken


def _may_read(busy: list[Job], slots: int) -> bool:
    """Whether to read one more recording, beside those of `busy` that are being read."""
    ahead = [job for job in busy if job.state is State.READING]
    if len(ahead) < AHEAD:
        return True
    return len(ahead) < slots and sum(job.size for job in ahead) < AHEAD_BYTES
