"""What the benchmarks share: timers for CPU and GPU, the device's copy rate, the machine."""

import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

FLUSHED = 256 * 2**20  # bytes: cold inputs are rotated through this much memory


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> float:
    """The median time of a call; the calls take turns."""
    for call in calls[:2]:
        call()
    synchronize(device)
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for call in calls:
                call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000 / len(calls))
        else:
            since = time.perf_counter()
            for call in calls:
                call()
            times.append((time.perf_counter() - since) / len(calls))
    return statistics.median(times)


def graphed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a CUDA graph, so that launches do not count; on a CPU the call itself."""
    if device.type != "cuda":
        return call
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, when copying a large tensor."""
    count = 2**30 if device.type == "cuda" else 2**27
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    spent = seconds_of([lambda: target.copy_(source)] * 3, device, 7)
    return 2 * count / spent


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run (Linux)."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in lists for child in found.read_text().split()]


def machine(device: torch.device) -> dict[str, object]:
    """The machine and versions, printed with every result."""
    match: dict[str, object] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "processor": _processor(),
    }
    if device.type == "cuda":
        match["gpu"] = torch.cuda.get_device_properties(device).name
        match["cuda"] = torch.version.cuda
    return match


def print_machine(device: torch.device) -> None:
    print(*(f"{key}: {value}" for key, value in machine(device).items()), sep="\n", flush=True)


def _processor() -> str:
    """The model's name (Linux), or the architecture."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0].strip() if names else platform.machine()
