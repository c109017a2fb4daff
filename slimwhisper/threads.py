"""How many threads torch uses, thread by thread."""

import threading

import torch

_LOCK = threading.Lock()


def use_one_thread() -> None:
    """From here on torch uses one thread in the calling thread; all others keep their number.

    For threads that work beside a model: two teams of threads on the same cores wait for each
    other. Also undoes the same setting where a package made it for everybody.
    """
    with _LOCK:
        usual = _usual()
        torch.set_num_threads(1)
        # That was for this thread, and for all that start later: another one takes it back.
        restore = threading.Thread(target=torch.set_num_threads, args=(usual,))
        restore.start()
        restore.join()


def _usual() -> int:
    """What a thread starts with."""
    found: list[int] = []
    probe = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    probe.start()
    probe.join()
    return found[0]
