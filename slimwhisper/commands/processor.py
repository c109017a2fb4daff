"""What `doctor` says of the processor."""

import os

import torch

from slimwhisper.audio.threads import set_threads
from slimwhisper.cores import VARIABLES, find_cores


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
