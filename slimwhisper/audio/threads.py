"""How many threads torch uses, thread by thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """From here on torch uses one thread in the calling thread; all others keep their number,
    whatever the body does.

    For threads that work beside a model: two teams of threads on the same cores wait for each
    other. The body is for imports that set one thread for everybody.
    """
    with _LOCK:
        usual = _usual()
        torch.get_num_threads()  # a thread that first asks later would be given the usual number
        try:
            yield
        finally:
            torch.set_num_threads(1)
            # That was for this thread, and for all that start later: another one takes it back.
            restore = threading.Thread(target=torch.set_num_threads, args=(usual,))
            restore.start()
            restore.join()


def use_one_thread() -> None:
    """`one_thread` for what follows."""
    with one_thread():
        pass


def _usual() -> int:
    """What a thread starts with."""
    found: list[int] = []
    probe = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return found[0]
