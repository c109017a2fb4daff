"""The number of threads that torch uses, per calling thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.Lock()


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


def use_one_thread() -> None:
    """`one_thread` with an empty body."""
    use_threads(1)


def use_threads(count: int) -> None:
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
