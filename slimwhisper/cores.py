"""How many cores this process may use, and the number of threads that torch uses.

Less than the machine has, if the process is bound to some of them (affinity), or if a control group
limits its time, as `docker --cpus 2` does. Neither torch nor OpenMP looks at that limit.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path, PurePosixPath

import torch

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torch's threads are as many as they say


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the machine, and what this process may use of them."""

    machine: int  # hyper-threads count
    allowed: int  # that the process may run on
    physical: int  # of these, without hyper-threads
    quota: float  # of time, in cores, by the control groups; inf: no limit

    @property
    def usable(self) -> int:
        """How many can work at the same time for this process, whatever they do.

        A part of a core counts as one: with a quota of 1.25 or 1.5 cores, two threads that are held
        back now and then need 0.86 and 0.69 times the time of one thread (base, float32).
        """
        return ceil(min(self.allowed, self.quota))

    @property
    def threads(self) -> int:
        """For arithmetic, of which one thread keeps a physical core busy."""
        return min(self.physical, self.usable)

    def limits(self) -> str:
        """What makes `threads` fewer than the machine's cores, such as "8 by affinity, 4 without
        hyper-threads, 2 by a quota of 1.5".
        """
        steps = (
            (self.allowed < self.machine, f"{self.allowed} by affinity"),
            (self.physical < self.allowed, f"{self.physical} without hyper-threads"),
            (self.quota < self.physical, f"{self.threads} by a quota of {self.quota:g}"),
        )
        return ", ".join(text for limits, text in steps if limits)


def find_cores(root: Path = Path("/")) -> Cores:
    """This process's cores, as they are now. root: where /proc and /sys are. Never raises."""
    machine = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = affinity(0) if affinity else range(machine)
    cpus = root / "sys/devices/system/cpu"
    siblings = {_text(cpus / f"cpu{i}/topology/thread_siblings_list") or f"{i}" for i in allowed}
    quota = min(filter(None, map(_quota, _groups(root))), default=inf)
    return Cores(machine, len(allowed), len(siblings), quota)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups, of version 1 and 2, that may limit this process's time:
    its own, and those above them.
    """
    rows = (line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines())
    paths = {name: path for _, names, path in rows for name in names.split(",")}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        if kind != "cgroup2" and not (kind == "cgroup" and "cpu" in options.split(",")):
            continue
        top, point = place.split(" ")[3:5]
        group = PurePosixPath(paths.get("" if kind == "cgroup2" else "cpu", "/"))
        # in a container its own group is often the top, whatever the path says
        inside = group.relative_to(top) if group.is_relative_to(top) else PurePosixPath()
        yield from (root / point[1:] / part for part in (inside, *inside.parents))


def _quota(group: Path) -> float | None:
    """The time that a control group has, in cores; None: no limit."""
    one = _text(group / "cpu.max") or " ".join(
        _text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    with suppress(ValueError):  # no number, or none at all
        quota, period = map(int, one.split())
        return quota / period if quota > 0 < period else None
    return None


def _text(path: Path) -> str:
    """What is in a file; "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child would wait for a thread that it does not have
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
_chosen = False  # by `set_threads`


def set_threads(count: int = 0) -> None:
    """Let torch use `count` threads, in the calling thread and in those that start later. 0: as
    many as this process has cores, if torch uses more by its own choice: it knows of no quota.

    A number that someone has set, here or in the environment, stays; one like torch's own choice
    does not count as set.
    """
    global _chosen
    with _LOCK:
        if count:
            _chosen = True
        elif not (_chosen or any(name in os.environ for name in VARIABLES)):
            found, current = find_cores(), torch.get_num_threads()
            if found.threads < current in (found.physical, found.allowed, found.machine):
                count = found.threads
        if count:
            torch.set_num_threads(count)


@contextmanager
def one_thread(count: int = 1) -> Iterator[None]:
    """Sets torch's number of threads for the calling thread: one, or `count`. All other threads
    keep theirs, also if the body, such as an import, changes the number globally.

    For threads that work alongside a model: two thread pools on the same cores wait for each
    other.
    """
    with _LOCK:
        default = _of_new_thread()
        torch.get_num_threads()  # a first call after the body would set the default
        try:
            yield
        finally:
            torch.set_num_threads(count)
            # this applies to all threads started later, too; another thread reverts it for them
            restore = threading.Thread(target=torch.set_num_threads, args=(default,))
            restore.start()
            restore.join()


def use_threads(count: int = 1) -> None:
    """torch uses `count` threads in the calling thread; all other threads keep their number."""
    with one_thread(count):
        pass


def usual_threads() -> int:
    """torch's number of threads in a new thread. Waits while `one_thread` has changed it."""
    with _LOCK:
        return _of_new_thread()


def _of_new_thread() -> int:
    numbers: list[int] = []
    probe = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return numbers[0]


WORKERS = min(8, max(1, find_cores().usable // 2))  # that read recordings
