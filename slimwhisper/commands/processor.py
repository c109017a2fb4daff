"""What `doctor` says of the threads, and of the speed of each dtype."""

import os
from contextlib import suppress
from dataclasses import replace

import torch

from slimwhisper.audio.threads import set_threads
from slimwhisper.cores import VARIABLES, find_cores
from slimwhisper.devices import choose_device, choose_dtype, is_slow, rounded
from slimwhisper.errors import OptionError
from slimwhisper.types import COMPUTE_TYPES


def describe_threads(threads: int) -> tuple[str, str]:
    """The threads, as `set_threads` sets them, and why they are as many; and what to do, or ""."""
    set_threads(threads)
    count, found = torch.get_num_threads(), find_cores()
    rules = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ][:1]
    if threads:
        rules = ["--threads"]
    value = f"{count} thread{'s' * (count != 1)}, of {found.machine} cores"
    if why := ", ".join(filter(None, (found.limits(), *rules))):
        value += f": {why}"
    if count <= found.threads:
        return value, ""
    return value, f"more threads than cores wait for each other; use {found.threads}"


def measure_speeds() -> str:
    """How fast a small job is in each dtype, but those that are slow on this processor."""
    from slimwhisper.commands.measurement import RECORDING_SECONDS, Case, measure

    job = Case(cache="slim", batch=1, windows=2, tokens=50, model="tiny", random=True)
    device, speeds = choose_device(None), []
    for name in COMPUTE_TYPES[1:]:
        with suppress(OptionError):  # int8 and float8 are not for every device
            if not is_slow(choose_dtype(name, device), device):
                seconds = measure(replace(job, dtype=name))["seconds"]
                kind = "inexact " if rounded(name) else ""
                speeds.append(f"{kind}{name} {job.windows * RECORDING_SECONDS / seconds:.0f}")
    auto = str(choose_dtype("auto", device)).removeprefix("torch.")
    how = f"{job.model}'s shape, {job.tokens} tokens a window, one at a time"
    return f"{', '.join(speeds)} times real time ({how}); --compute_type auto is {auto}"
