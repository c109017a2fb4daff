"""How many cores a process may use, in trees that look like /proc and /sys; and torch's threads."""

import os
from concurrent.futures import ThreadPoolExecutor, wait
from math import inf
from pathlib import Path
from threading import Event, Timer

import pytest
import torch

from slimwhisper import cores
from slimwhisper.commands import doctor
from slimwhisper.cores import Cores, find_cores
from slimwhisper.loading import load_model
from tests.support.waiting import forked

V1 = "31 23 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpuacct,cpu"
V2 = "41 31 0:38 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
OTHER = "38 31 0:35 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n24 1 8:1 / / rw - ext4 a rw"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(root: Path, monkeypatch: pytest.MonkeyPatch, cores: int, siblings: int = 1) -> None:
    """Processors 0 and cores / 2 are hyper-threads of one core, as Linux numbers them."""
    cpus, physical = root / "sys/devices/system/cpu", cores // siblings
    for i in range(cores):
        same = ",".join(map(str, range(i % physical, cores, physical)))
        write(cpus / f"cpu{i}/topology/thread_siblings_list", same)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)


@pytest.mark.parametrize(
    ("group", "top", "quotas", "expected"),
    [
        ("0::/", "/", {"": "max 100000"}, inf),
        ("0::/a/b", "/", {"a/b": "max 100000", "a": "200000 50000", "": "max 100000"}, 4),
        ("0::/a/b", "/", {"a/b": "50000 100000", "a": "300000 100000"}, 0.5),
        ("0::/a/b", "/a", {"b": "300000 100000", "": "200000 100000"}, 2),  # mounted from within
        ("0::/docker/7", "/", {"": "200000 100000"}, 2),  # that folder is not to be seen
        ("0::/", "/", {"": "no number"}, inf),
        ("4:cpu,cpuacct:/\n0::/x", "/", {"": "-1 100000"}, inf),
        ("4:cpuacct,cpu:/a\n2:blkio:/b", "/", {"a": "250000 100000", "b": "1 100000"}, 2.5),
        ("4:cpu,cpuacct:/docker/7", "/docker/7", {"": "300000 100000"}, 3),
    ],
)
def test_quotas(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    top: str,
    quotas: dict[str, str],
    expected: float,
) -> None:
    machine(tmp_path, monkeypatch, 64)
    first, second = "cpu:" in group or "cpu," in group, group.startswith("0:")
    assert first != second
    mount = tmp_path / ("sys/fs/cgroup/cpu,cpuacct" if first else "sys/fs/cgroup")
    for folder, text in quotas.items():
        if second:
            write(mount / folder / "cpu.max", text)
        else:
            for name, number in zip(("quota", "period"), text.split(), strict=True):
                write(mount / folder / f"cpu.cfs_{name}_us", number)
    write(tmp_path / "proc/self/cgroup", group)
    line = (V1 if first else V2).format(top=top)
    write(tmp_path / "proc/self/mountinfo", f"{OTHER}\n{line}")
    assert find_cores(tmp_path) == Cores(64, 64, 64, expected)


# the second: half of two cores
@pytest.mark.parametrize(("affinity", "physical"), [(range(8), 4), ({0, 1}, 2), ({1, 5}, 1)])
def test_hyper_threads_within_the_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: set[int], physical: int
) -> None:
    machine(tmp_path, monkeypatch, cores=8, siblings=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(affinity))
    found = find_cores(tmp_path)
    assert found == Cores(8, len(affinity), physical, inf)
    assert (found.usable, found.threads) == (len(affinity), physical)


def test_systems_that_tell_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert find_cores(tmp_path) == Cores(6, 6, 6, inf)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert find_cores(tmp_path).threads == 1


@pytest.mark.parametrize(
    ("cores", "usable", "counted", "limits"),
    [
        (Cores(64, 64, 64, inf), 64, 64, ""),
        (Cores(64, 64, 32, 2.0), 2, 2, "32 without hyper-threads, 2 by a quota of 2"),
        (Cores(64, 8, 4, 4.5), 5, 4, "8 by affinity, 4 without hyper-threads"),
        (Cores(2, 2, 2, 1.5), 2, 2, "2 by a quota of 1.5"),  # a part of a core counts
    ],
)
def test_counts(cores: Cores, usable: int, counted: int, limits: str) -> None:
    assert (cores.usable, cores.threads, cores.limits()) == (usable, counted, limits)


@pytest.mark.parametrize(
    ("current", "variable", "chosen", "expected"),
    [
        (8, None, 0, 2),  # torch's own choice, the physical cores, or all
        (5, None, 0, 5),  # the host program's
        (8, "MKL_NUM_THREADS", 0, 8),
        (8, None, 16, 16),
        (8, "OMP_NUM_THREADS", 3, 3),
    ],
)
def test_threads_of_a_loaded_model(
    monkeypatch: pytest.MonkeyPatch, current: int, variable: str | None, chosen: int, expected: int
) -> None:
    """With a quota of two cores: what the command, the library and the server all come to."""
    numbers = [current]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "8")
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(cores, "_chosen", False)
    monkeypatch.setattr(cores, "find_cores", lambda: Cores(16, 16, 8, 2.0))
    check = doctor._cpu(chosen)
    assert check.value.startswith(
        f"{expected} threads, of 16 cores: 8 without hyper-threads, 2 by a quota of 2"
    )
    end = ", --threads" if chosen else f", {variable}=8" if variable else "of 2"
    assert check.value.endswith(end)
    assert bool(check.advice) == (check.ok is None) == (expected > 2)
    load_model("digits", device="cpu")  # a chosen number is not lowered afterwards
    assert numbers[-1] == expected


def test_a_number_that_another_thread_changes() -> None:
    """It is read before or after: an engine that took the one thread of a reader kept it. A child
    of fork does not wait for that thread, which it does not have.
    """
    usual, changed, go = cores.usual_threads(), Event(), Event()

    def change() -> None:
        with cores.one_thread():
            torch.set_num_threads(usual + 1)
            changed.set()
            go.wait(10)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(change)
        assert changed.wait(10)
        asked = pool.submit(cores.usual_threads)
        assert not wait([asked], 0.1).done
        Timer(0.1, go.set).start()
        in_a_child = forked(lambda: cores.usual_threads() == usual)
        assert asked.result() == usual and in_a_child()
