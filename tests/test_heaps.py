"""Freed memory stays in the heaps of a process with a model on a CPU."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from slimwhisper import devices
from slimwhisper.model.model import Model
from tests.support.windows import random_model

FAULTS = """
import resource
from slimwhisper.devices import keep_heaps
keep_heaps()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (20 << 20) for _ in range(3)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_not_fetched_again() -> None:
    """The third time no page of it is; with a user's own settings, all."""

    def faults(**settings: str) -> int:
        known = {k: v for k, v in os.environ.items() if k not in devices.SETTINGS}
        command = [sys.executable, "-c", FAULTS]
        done = subprocess.run(command, env=known | settings, capture_output=True, check=True)
        return int(done.stdout)

    assert faults() < 1000 < faults(MALLOC_TRIM_THRESHOLD_="65536")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Those of mallopt."""
    made: list[tuple[int, int]] = []
    for name in devices.SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def function(name: str) -> object:
        return (lambda *option: made.append(option)) if name == "mallopt" else None

    monkeypatch.setattr(devices, "_glibc", function)
    devices.keep_heaps.cache_clear()
    yield made
    devices.keep_heaps.cache_clear()


def test_a_model_sets_it_once(calls: list[tuple[int, int]]) -> None:
    assert isinstance(random_model(), Model) and isinstance(random_model(), Model)
    assert calls == [devices.TRIM_THRESHOLD, devices.MMAP_THRESHOLD]


def test_another_c_library(calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has neither function, and nothing is set or trimmed."""
    monkeypatch.setattr(devices, "_glibc", lambda _: None)
    devices.keep_heaps()
    devices.HeapTrimmer().trim()
    assert not calls
