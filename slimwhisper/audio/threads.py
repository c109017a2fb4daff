"""The number of threads that torch uses, per calling thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.Lock()


@contextmanager
def one_thread(count: int = 1) -> Iterator[None]:
    """From here on torch uses one thread, or `count`, in the calling thread; all other threads keep
    their number, whatever the body does.

    For threads that work alongside a model: two thread pools on the same cores wait for each
    other. The body is for imports that set one thread globally.
    """
    with _LOCK:
        usual = usual_threads()
        torch.get_num_threads()  # a thread whose first call comes later would get the usual number
        try:
            yield
        finally:
            torch.set_num_threads(count)
            # That also applies to all threads started later: another thread reverts it for them.
            restore = threading.Thread(target=torch.set_num_threads, args=(usual,))
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
    """The number that a new thread starts with."""
    found: list[int] = []
    probe = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return found[0]
