"""The order in which recordings are read: users take turns."""

from collections import Counter, deque
from collections.abc import Callable, Collection

from slimwhisper.app.service.jobs import Job
from slimwhisper.audio.read_ahead import WORKERS

AHEAD = 2 * WORKERS  # recordings read ahead, whatever their size
AHEAD_BYTES = 32 << 20  # more are read ahead, up to this size, so that a step can fill all slots


def next_jobs(
    waiting: deque[Job],
    reading: Collection[Job],
    running: Collection[Job],
    slots: int,
    admit: Callable[[Job], bool],
) -> list[Job]:
    """Take the jobs to read next out of `waiting`; all are for one model.

    Users with the fewest jobs in flight come first. A different model has to wait until all jobs
    for the current one have ended. admit: whether there is room for a job's recording, which it
    then has.
    """
    taken: list[Job] = []
    while waiting and _may_read([*reading, *taken], slots):
        wanted = waiting[0].model
        busy = [*reading, *running, *taken]
        if busy and busy[0].model != wanted:
            break
        users = Counter(job.user for job in busy)
        same = [job for job in waiting if job.model == wanted]
        job = next(filter(admit, sorted(same, key=lambda job: users[job.user])), None)
        if job is None:
            break
        waiting.remove(job)
        taken.append(job)
    return taken


def _may_read(ahead: list[Job], slots: int) -> bool:
    """Whether to read one more recording while those in `ahead` are read."""
    if len(ahead) < AHEAD:
        return True
    return len(ahead) < slots and sum(job.size for job in ahead) < AHEAD_BYTES
