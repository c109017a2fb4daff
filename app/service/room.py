"""How much of the recordings that are read, and not transcribed yet, is kept: over all jobs."""

from threading import Lock

from slimwhisper.app.service.jobs import Job
from slimwhisper.audio.samples import SPOOL_SECONDS
from slimwhisper.types import SAMPLE_RATE

IN_MEMORY = SPOOL_SECONDS * SAMPLE_RATE  # samples: a longer recording is kept on disk
STEP = 60 * SAMPLE_RATE  # samples by which a recording that is being read takes more room
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

    def keep(self, job: Job, samples: int) -> None:
        """Make room for so many samples of a recording that is being read. Raises EndedError,
        NoRoomError.
        """
        if job.ended:
            raise EndedError
        if samples <= self._held.get(job, 0):
            return
        with self._lock:
            if self._again or not self._fits(job, samples + STEP):
                self._again.add(job)
                raise NoRoomError
            self._settle(job, samples + STEP)

    def settle(self, job: Job, samples: int) -> None:
        """The recording has been read: it has so many samples. Raises EndedError."""
        with self._lock:
            self._settle(job, samples)

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

    def _settle(self, job: Job, samples: int) -> None:
        if job not in self._held:  # released meanwhile
            raise EndedError
        self._held[job] = samples
