"""The threads of the functions in C."""

import ctypes
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slimwhisper.kernels.cpu.library import NATIVE
from tests.support.command import python
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not NATIVE.exists(), reason="kernels/cpu is not compiled here")
Iteration = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long)
WAIT = 60  # seconds, if it fails


def run_parallel(run: Callable[[int], None], count: int, threads: int) -> None:
    iteration = Iteration(lambda _, index: run(index))
    ctypes.CDLL(str(NATIVE)).run_parallel(iteration, None, ctypes.c_long(count), threads)


def run_python(*lines: str, **environment: str) -> None:
    """In a process in which nothing was set or imported."""
    clean = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    done = python("-c", "\n".join(lines), without=clean, **environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 400])
def test_each_iteration_once(count: int, threads: int) -> None:
    """Also when several threads of Python call, again and again."""
    found = [Counter[int]() for _ in range(3)]

    def call(counter: Counter[int]) -> None:
        for _ in range(10):
            run_parallel(lambda index: counter.update([index]), count, threads)

    with ThreadPoolExecutor(3) as callers:
        list(callers.map(call, found))
    assert found == [Counter(dict.fromkeys(range(count), 10))] * 3


def test_the_caller_waits_for_no_helper_that_has_not_begun() -> None:
    """One helper is in a long iteration: the others' are done meanwhile, by whoever is there."""
    done, others = list[int](), threading.Event()

    def run(index: int) -> None:
        if index == 0:
            assert others.wait(WAIT)
        done.append(index)
        if len(done) == 9:
            others.set()

    run_parallel(run, 10, 2)
    assert sorted(done) == list(range(10)) and done[-1] == 0


def test_at_most_so_many() -> None:
    """After a loop with more: the same helpers are there."""
    run_parallel(lambda _: None, 8, 4)
    seen = set[int]()
    run_parallel(lambda _: seen.add(threading.get_native_id()), 100, 2)
    assert len(seen) <= 2


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def tasks() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@linux
def test_helpers_end_with_their_caller_and_take_no_signals() -> None:
    """They work at the same time until then."""
    helpers = set[str]()

    def call() -> None:
        before = tasks()
        together = threading.Barrier(3)
        run_parallel(lambda _: [None, together.wait(WAIT)][0], 3, 3)
        helpers.update(tasks() - before if not together.broken else ())
        for task in helpers:
            status = Path(f"/proc/self/task/{task}/status").read_text()
            blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
            assert blocked & (1 << signal.SIGINT - 1), "Python's main thread gets it"

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    assert len(helpers) == 2
    assert eventually(lambda: not helpers & tasks(), WAIT)


@linux
def test_in_a_forked_process() -> None:
    """It has none of the threads of the one it came from; OpenMP's would be waited for."""
    run_python(
        "import os, torch",
        "from slimwhisper.kernels.cpu.library import library",
        "torch.set_num_threads(2)",
        "x, w = torch.ones(40, 64), torch.ones(64, 64)",
        "assert (library().linear(x, w) == 64).all()",
        "child = os.fork()",
        "assert (library().linear(x, w) == 64).all()",
        "os._exit(0) if child == 0 else None",
        "assert os.waitpid(child, 0)[1] == 0",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "environment", "expected"),
    [
        ("", {}, "2000"),
        ("torch", {}, None),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_how_pytorchs_threads_wait(
    first: str, environment: dict[str, str], expected: str | None
) -> None:
    """Set before PyTorch reads it, unless somebody else did."""
    run_python(
        "import os",
        f"import {first}" if first else "",
        "import slimwhisper",
        f"assert os.environ.get('GOMP_SPINCOUNT') == {expected!r}",
        **environment,
    )
