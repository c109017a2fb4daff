"""The number of threads that torch uses, per calling thread."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from slimwhisper.cores import VARIABLES, find_cores

_LOCK = threading.Lock()
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
        default = usual_threads()
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
    """torch's number of threads in a new thread."""
    numbers: list[int] = []
    probe = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return numbers[0]


WORKERS = min(8, max(1, find_cores().usable // 2))  # that read recordings
