"""Where a window's time goes, kernel by kernel: python bench/profile_step.py [--shape large-v3] ...

A random checkpoint of an official shape. Times the encoder for several numbers of windows together,
then, for each form of cache, a step of a full engine, a CUDA graph on a GPU, and the encoder and
prompts of 227 tokens, as many together as the engine takes. Each is also profiled: its kernels
by their time, and how many it launches. On a CPU, operators stand in for kernels. Prints tables;
with --results, appends every row to a file as soon as it is measured.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from decode import FORMS, full_engine
from rows import Rows, add_results_flag, preset_of
from timing import seconds_of, synchronize

from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.forms import choose_forms
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.model.model import Model

SHOWN = 15  # kernels of each part
PROMPT = 227  # tokens: all of the text before that fits, and what starts a window
PROFILED = 2  # calls


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel in one call of a part."""

    name: str
    calls: float
    milliseconds: float  # all calls


def profile(call: Callable[[], object], device: torch.device) -> list[Kernel]:
    """The kernels of a call that has run before, the longest first; means of `PROFILED` calls."""
    gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if gpu else activity.CPU]) as seen:
        for _ in range(PROFILED):
            call()
        synchronize(device)
    found = []
    for event in seen.key_averages():
        microseconds = event.self_device_time_total if gpu else event.self_cpu_time_total
        kind = Kernel(event.key, event.count / PROFILED, microseconds / 1000 / PROFILED)
        if kind.milliseconds > 0:  # with a GPU, the calls of CUDA's runtime take none there
            found.append(kind)
    return sorted(found, key=lambda k: k.milliseconds, reverse=True)


class Profiler:
    """Measures, prints and records the parts of one form."""

    def __init__(self, rows: Rows, device: torch.device, repeats: int, case: dict[str, Any]):
        """case: the columns that all rows share."""
        self.rows, self.device, self.repeats, self.case = rows, device, repeats, case

    def part(self, what: str, windows: int, call: Callable[[], object]) -> None:
        """Time and profile a call that serves `windows` windows.

        The row has the milliseconds of one window for encoder and prompt, of all for a step.
        """
        total = seconds_of([call], self.device, self.repeats) * 1000
        each = total if what == "step" else total / windows
        kernels = profile(call, self.device)
        launches, busy = sum(k.calls for k in kernels), sum(k.milliseconds for k in kernels)
        case = {**self.case, "batch": windows, "what": what}
        numbers = {"call_ms": total, "launches": round(launches, 1), "busy_ms": round(busy, 4)}
        self.rows.add(**case, milliseconds=each, **numbers)
        print(f"{what} of {windows}: {total:.3f} ms; {launches:.0f} launches, busy {busy:.3f} ms")
        for k in kernels[:SHOWN]:
            print(f"  {k.milliseconds:9.4f} ms  {k.calls:6.1f} x  {k.name[:90]}", flush=True)
            self.rows.add(
                **{**case, "what": "kernel"},
                part=what,
                kernel=k.name[:120],
                calls=k.calls,
                milliseconds=round(k.milliseconds, 5),
            )

    def encoder(self, model: Model, together: int) -> None:
        """Time alone, by the number of windows encoded together."""
        mel = torch.randn(together, model.dims.n_mels, 3000, device=self.device)
        spent = seconds_of([lambda: model.encoder(mel)], self.device, self.repeats) * 1000
        print(f"encoder of {together}: {spent:.3f} ms, {spent / together:.3f} a window")
        self.rows.add(**self.case, what="encoder", batch=together, milliseconds=spent / together)


@torch.inference_mode()
def prompt_of(model: Model, windows: int) -> Callable[[], object]:
    """A call that reads prompts of `PROMPT` tokens for `windows` windows."""
    cache = DecoderCache(model.allocate_cross(windows), model.allocate_self(windows))
    rows = CacheRows.block(windows, device=model.device)
    features = torch.randn(windows, model.dims.n_audio_ctx, model.dims.n_audio_state)
    cache.cross.put(rows.slots, features.to(model.device, model.dtype))
    tokens = torch.full((windows, PROMPT), 1000, device=model.device)
    return lambda: model.decoder.prefill(tokens, rows, cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="float16" if gpu else "float32")
    parser.add_argument("--shape", choices=OFFICIAL_DIMS, default="large-v3" if gpu else "tiny")
    parser.add_argument("--windows", type=int, default=64 if gpu else 2)
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=("slim", "slim fp8", "baseline")
    )
    parser.add_argument("--together", type=int, nargs="*", default=[1, 4, 8, 16] if gpu else [1, 2])
    parser.add_argument("--repeats", type=int, default=10 if gpu else 2)
    add_results_flag(parser)
    asked = parser.parse_args()
    device, dtype = torch.device(asked.device), getattr(torch, asked.dtype)
    rows = Rows(asked.results, "profile", device)
    checkpoint = random_checkpoint(OFFICIAL_DIMS[asked.shape])
    with torch.inference_mode():
        for form in asked.forms:
            measure(asked, form, rows, Model(checkpoint, device, dtype, forms_of(form)))


def forms_of(form: str) -> tuple[str, str]:
    """The forms (cross, self) of, say, "slim fp8"."""
    preset, _, number = form.partition(" ")
    return choose_forms(preset, cache_dtype=number or None)


def measure(asked: argparse.Namespace, form: str, rows: Rows, model: Model) -> None:
    """All parts of one form; the encoder, which no form changes, by number with the first."""
    print(f"== {form}: {model.plan.kernels.describe()}", flush=True)
    case = {"model": asked.shape, **preset_of(form), "dtype": asked.dtype}
    profiler = Profiler(rows, model.device, asked.repeats, case)
    if form == asked.forms[0]:
        for together in asked.together:
            profiler.encoder(model, together)
    engine = full_engine(model, asked.windows, 1, steps=asked.repeats + PROFILED + 8)
    profiler.part("step", asked.windows, engine.step)
    graphs = engine.first.graphs
    if graphs is not None:
        print(f"  graphs: {len(graphs.recorded)}, replays {graphs.replays}, {graphs.failure}")
    group = min(engine.encode_batch, asked.windows)
    del engine
    mel = torch.randn(group, model.dims.n_mels, 3000, device=model.device)
    profiler.part("encoder", group, lambda: model.encoder(mel))
    profiler.part("prompt", group, prompt_of(model, group))


if __name__ == "__main__":
    main()
