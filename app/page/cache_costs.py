"""The memory that the caches take, beside the baseline's: a small chart in plain HTML."""

from collections.abc import Callable
from html import escape
from pathlib import Path

import torch

from slimwhisper.app.service.engines import Engines
from slimwhisper.cache.forms import PRESETS, brief
from slimwhisper.devices import free_bytes
from slimwhisper.text import human_size

MEMORY = Path("/proc/meminfo")
BASELINE = "baseline"


def panel(engines: Engines, name: str) -> str:
    """The chart of the loaded model, in HTML. name: the model's, to show."""
    model = engines.model
    if model is None:
        return '<p class="sw-note">No model is loaded now. The next recording loads one.</p>'
    presets = {pair: preset for preset, pair in PRESETS.items()}
    form = presets.get(model.forms, "+".join(map(brief, model.forms)))
    ours, baseline = model.bytes_per_window(), model.baseline_bytes_per_window()
    allocated, free = engines.cache_bytes(), free_memory(model.device)
    charts: tuple[tuple[str, int, int, Callable[[int], str]], ...] = (
        ("One window, 30 s of audio", ours, baseline, human_size),
        ("Allocated now", allocated, allocated * baseline // ours, human_size),
        (
            f"Windows that fit in the {human_size(free)} free",
            *(free // ours, free // baseline),
            "{:,}".format,
        ),
    )
    figures = ""
    for title, value, theirs, shown in charts:
        bars = {form: value} if form == BASELINE else {form: value, BASELINE: theirs}
        figures += f"<figure><figcaption>{title}</figcaption><div>"
        for label, number in bars.items():
            share = 100 * number / max(1, *bars.values())
            base = " sw-base" if label == BASELINE else ""
            figures += f'<span>{escape(label)}</span><span class="sw-bar{base}">'
            figures += f'<i style="width:{share:.1f}%"></i></span><b>{shown(number)}</b>'
        figures += "</div></figure>"
    return (
        f'<p class="sw-note">Model <b>{escape(name)}</b>, cache form <b>{escape(form)}</b>: '
        f"{baseline / ours:.1f} times smaller than the baseline.</p>"
        f'<div class="sw-charts">{figures}</div>'
    )


def free_memory(device: torch.device) -> int:
    """Free bytes on a device."""
    if device.type == "cuda":
        return free_bytes(device)
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
