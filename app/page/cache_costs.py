"""The memory that the caches take, beside the baseline's: a small chart in plain HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.engines import Engines
from slimwhisper.cache.forms import PRESETS, brief
from slimwhisper.devices import free_bytes
from slimwhisper.text import human_size

MEMORY = Path("/proc/meminfo")
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Costs:
    """A model's cache memory in bytes, and the baseline's for the same windows."""

    model: str
    cache_form: str  # a preset, or the two forms joined with "+"
    window: int  # bytes per window of 30 s
    baseline_window: int  # likewise
    allocated: int  # bytes
    free: int  # bytes, on the model's device

    @property
    def baseline_allocated(self) -> int:
        """Bytes that the baseline would take now."""
        return self.allocated * self.baseline_window // self.window

    def fit(self, window: int) -> int:
        """The number of windows of `window` bytes that fit in the free memory."""
        return self.free // window


def costs_of(engines: Engines, name: str) -> Costs | None:
    """The loaded model's costs; None if no model is loaded. name: the model's name to show."""
    model = engines.model
    if model is None:
        return None
    presets = {pair: preset for preset, pair in PRESETS.items()}
    return Costs(
        name,
        presets.get(model.forms, "+".join(map(brief, model.forms))),
        model.bytes_per_window(),
        model.baseline_bytes_per_window(),
        engines.cache_bytes(),
        free_memory(model),
    )


def free_memory(model: SlimWhisper) -> int:
    """Free bytes on the model's device."""
    if model.device.type == "cuda":
        return free_bytes(model.device)
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")


def panel(costs: Costs | None) -> str:
    """The chart, in HTML."""
    if costs is None:
        return '<p class="sw-note">No model is loaded now. The next recording loads one.</p>'
    names = [costs.cache_form] if costs.cache_form == BASELINE else [costs.cache_form, BASELINE]
    windows = (costs.window, costs.baseline_window)
    fitting = [costs.fit(window) for window in windows]
    charts = (
        ("One window, 30 s of audio", windows, human_size),
        ("Allocated now", (costs.allocated, costs.baseline_allocated), human_size),
        (f"Windows that fit in the {human_size(costs.free)} free", fitting, "{:,}".format),
    )
    figures = [
        _chart(title, list(zip(names, values, strict=False)), shown)
        for title, values, shown in charts
    ]
    ratio = costs.baseline_window / costs.window
    return (
        f'<p class="sw-note">Model <b>{escape(costs.model)}</b>, cache form '
        f"<b>{escape(costs.cache_form)}</b>: {ratio:.1f} times smaller than the baseline.</p>"
        f'<div class="sw-charts">{"".join(figures)}</div>'
    )


def _chart(title: str, bars: Sequence[tuple[str, int]], shown: Callable[[int], str]) -> str:
    """A figure with one bar per (name, value); `shown` formats the value."""
    largest = max(1, *(value for _, value in bars))
    rows = "".join(
        f'<span>{escape(name)}</span><span class="sw-bar{" sw-base" if name == BASELINE else ""}">'
        f'<i style="width:{100 * value / largest:.1f}%"></i></span><b>{shown(value)}</b>'
        for name, value in bars
    )
    return f"<figure><figcaption>{escape(title)}</figcaption><div>{rows}</div></figure>"
