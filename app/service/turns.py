"""Whose recording is read next."""

from collections import Counter, deque
from collections.abc import Collection

from slimwhisper.app.service.jobs import Job
from slimwhisper.audio.read_ahead import WORKERS

AHEAD = 2 * WORKERS  # recordings that are read at once, or about to be
AHEAD_BYTES = 32 << 20  # of small ones more, so that a step of the engine can fill all its slots


def next_jobs(
    waiting: deque[Job], reading: Collection[Job], running: Collection[Job], slots: int
) -> list[Job]:
    """Take jobs out of `waiting`: of the users with the fewest in flight, all for one model.

    Another model's turn comes when the jobs before it have ended.
    """
    taken: list[Job] = []
    while waiting and _may_read([*reading, *taken], slots):
        wanted = waiting[0].model
        busy = [*reading, *running, *taken]
        if busy and busy[0].model != wanted:
            break
        users = Counter(job.user for job in busy)
        same = [job for job in waiting if job.model == wanted]
        job = min(same, key=lambda job: users[job.user])
        waiting.remove(job)
        taken.append(job)
    return taken


def _may_read(ahead: list[Job], slots: int) -> bool:
    """Whether one more recording may be read, where these are."""
    if len(ahead) < AHEAD:
        return True
    return len(ahead) < slots and sum(job.size for job in ahead) < AHEAD_BYTES
