"""What the caches cost now, beside the baseline's: a small chart of plain HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.service import Service
from slimwhisper.cache.forms import PRESETS
from slimwhisper.text import human_size

MEMORY = Path("/proc/meminfo")
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes; those of the baseline are for the same windows."""

    model: str
    form: str
    window: int
    baseline_window: int
    allocated: int
    free: int

    @property
    def baseline_allocated(self) -> int:
        return self.allocated * self.baseline_window // self.window

    def fit(self, window: int) -> int:
        """Windows of this size that the free memory has room for."""
        return self.free // window


def costs_of(service: Service, name: str) -> Costs | None:
    """What the loaded model costs; None where none is loaded. name: how the model is called."""
    model, choice = service.model, service.loaded
    if model is None or choice is None:
        return None
    forms = {pair: preset for preset, pair in PRESETS.items()}
    return Costs(
        name,
        forms.get(model.forms, "+".join(model.forms)),
        model.bytes_per_window(),
        model.baseline_bytes_per_window(),
        service.cache_bytes(),
        free_memory(model),
    )


def free_memory(model: SlimWhisper) -> int:
    """Bytes that are free where the model's caches are."""
    if model.device.type == "cuda":
        return torch.cuda.mem_get_info(model.device)[0]
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")


def panel(costs: Costs | None) -> str:
    """The chart, in HTML."""
    if costs is None:
        return '<p class="sw-note">No model is loaded just now; the next recording loads one.</p>'
    forms = [costs.form] if costs.form == BASELINE else [costs.form, BASELINE]
    windows = (costs.window, costs.baseline_window)
    fitting = [costs.fit(window) for window in windows]
    charts = (
        ("One window, 30 s of audio", windows, human_size),
        ("Allocated now", (costs.allocated, costs.baseline_allocated), human_size),
        (f"Windows that fit in the {human_size(costs.free)} free", fitting, "{:,}".format),
    )
    figures = [
        _chart(title, list(zip(forms, values, strict=False)), shown)
        for title, values, shown in charts
    ]
    ratio = costs.baseline_window / costs.window
    return (
        f'<p class="sw-note">Model <b>{escape(costs.model)}</b>, cache form '
        f"<b>{escape(costs.form)}</b>: {ratio:.1f} times smaller than the baseline.</p>"
        f'<div class="sw-charts">{"".join(figures)}</div>'
    )


def _chart(title: str, bars: Sequence[tuple[str, int]], shown: Callable[[int], str]) -> str:
    """A figure: a bar for each form, as long as its number."""
    most = max(1, *(value for _, value in bars))
    rows = "".join(
        f'<span>{escape(form)}</span><span class="sw-bar{" sw-base" if form == BASELINE else ""}">'
        f'<i style="width:{100 * value / most:.1f}%"></i></span><b>{shown(value)}</b>'
        for form, value in bars
    )
    return f"<figure><figcaption>{escape(title)}</figcaption><div>{rows}</div></figure>"
