"""Compares the memory of the caches with the baseline's, in a small table."""

from pathlib import Path

import torch

from slimwhisper.app.service.engines import Engines
from slimwhisper.cache.forms import PRESETS, brief
from slimwhisper.devices import free_bytes
from slimwhisper.text import human_size

MEMORY = Path("/proc/meminfo")


def cost_table(engines: Engines) -> str:
    """The table for the loaded model, in Markdown."""
    model, loaded = engines.model, engines.loaded
    if model is None or loaded is None:
        return "No model is loaded. The next recording loads one."
    presets = {pair: preset for preset, pair in PRESETS.items()}
    form = presets.get(model.forms, "+".join(map(brief, model.forms)))
    slim, baseline = model.bytes_per_window(), model.baseline_bytes_per_window()
    allocated, free = engines.cache_bytes(), free_memory(model.device)
    baseline_bytes = allocated * baseline // slim
    return f"""Model `{loaded.display_name}`: {baseline / slim:.1f} times smaller than the baseline.

| | {form} | baseline |
|---|--:|--:|
| One window, 30 s of audio | {human_size(slim)} | {human_size(baseline)} |
| Allocated now | {human_size(allocated)} | {human_size(baseline_bytes)} |
| Windows that fit in the {human_size(free)} free | {free // slim:,} | {free // baseline:,} |
"""


def free_memory(device: torch.device) -> int:
    """Free bytes on a device."""
    if device.type == "cuda":
        return free_bytes(device)
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
