"""Times decoding with random weights: python bench/decode.py [steps|profile] [--shapes ...]

steps: for every form of cache, number of windows and beams, a step of a full engine, a CUDA graph
on a GPU, and whole windows, all in turn. profile: where a window's time goes, kernel by kernel (on
a CPU operators stand in for them): the encoder for several numbers of windows together, then, for
each form, a step, the encoder and prompts of 227 tokens, as many together as the engine takes.
Prints tables; with --results, appends every row to a file as soon as it is measured.
"""

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from rows import Rows, add_results_flag, preset_of
from timing import seconds_of, synchronize

from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.forms import PRESETS, choose_forms
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.cache.pool import pages_of
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import OneAnswer, Search, Window
from slimwhisper.engine.rules import make_rules
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Options

FORMS = (*PRESETS, "slim fp8")
CONTEXT = 200  # prompt tokens before the text
WARM_UP = 6  # steps: the first runs without a graph, the second is recorded
SHOWN = 15  # kernels of each part
PROMPT = 227  # tokens: all of the text before that fits, and what starts a window
PROFILED = 2  # calls


def window(model: Model, tokens: int, before: int) -> Window:
    """A window that samples exactly `tokens` tokens, after a prompt of `before`."""
    dims, tokenizer = model.dims, get_tokenizer(model.dims)
    vocabulary = get_vocabulary(dims)
    options = Options(
        sample_len=tokens, suppress_tokens=f"-1,{vocabulary.eot}", without_timestamps=True
    )
    mel = torch.randn(dims.n_mels, 3000, generator=torch.Generator().manual_seed(0))
    previous = [tokenizer.sot_prev, *range(1000, 1000 + before)] if before else []
    prompt = (*previous, *tokenizer.sot_sequence)
    return Window(mel, prompt, len(previous), make_rules(dims, options))


def step_seconds(model: Model, windows: int, beams: int, steps: int) -> float:
    """The mean time of a step of a full engine."""
    engine = full_engine(model, windows, beams, steps)
    synchronize(model.device)
    since = time.perf_counter()
    for _ in range(steps):
        engine.step()
    synchronize(model.device)
    return (time.perf_counter() - since) / steps


def full_engine(model: Model, windows: int, beams: int, steps: int) -> Engine:
    """An engine whose slots all decode, warmed up, and with room for `steps` more steps.

    The encoder works beside the steps, so the first windows wait for the last.
    """
    engine = _engine(model, windows, beams, check_every=1000)
    room = model.dims.n_text_ctx - CONTEXT - 8
    for _ in range(windows):
        engine.submit(OneAnswer(), window(model, room, CONTEXT))
    while len(engine.scheduler.first.tickets) < windows:
        engine.step()
    for _ in range(WARM_UP):
        engine.step()
    return engine


def window_seconds(model: Model, windows: int, beams: int, tokens: int, before: int) -> float:
    """The time of all windows of a full engine; the second run, when everything is compiled."""
    engine = _engine(model, windows, beams)
    for _ in range(2):
        synchronize(model.device)
        since = time.perf_counter()
        engine.ask([window(model, tokens, before) for _ in range(windows)])
        synchronize(model.device)
    return (time.perf_counter() - since) / windows


def _engine(model: Model, windows: int, beams: int, check_every: int | None = None) -> Engine:
    gc.collect()  # the caches of an engine before it may leave no room
    search = Search(beams=beams if beams > 1 else None)
    return Engine(model, get_vocabulary(model.dims), windows, search, check_every)


def profile(call: Callable[[], object], device: torch.device) -> list[tuple[str, float, float]]:
    """The kernels of a call that has run before, the longest first: name, calls, milliseconds."""
    gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if gpu else activity.CPU]) as seen:
        for _ in range(PROFILED):
            call()
        synchronize(device)
    found = []
    for event in seen.key_averages():
        spent = (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1000
        if spent > 0:  # with a GPU, the calls of CUDA's runtime take none there
            found.append((event.key, event.count / PROFILED, spent / PROFILED))
    return sorted(found, key=lambda kernel: -kernel[2])


@torch.inference_mode()
def prompt_of(model: Model, windows: int) -> Callable[[], object]:
    """A call that reads prompts of `PROMPT` tokens for `windows` windows."""
    cache = DecoderCache(model.allocate_cross(windows), model.allocate_self(windows))
    pages = pages_of(model.dims.n_text_ctx)
    rows = CacheRows.block(windows, pages=pages, device=model.device)
    features = torch.randn(windows, model.dims.n_audio_ctx, model.dims.n_audio_state)
    cache.cross.put(rows.slots, features.to(model.device, model.dtype))
    tokens = torch.full((windows, PROMPT), 1000, device=model.device)
    return lambda: model.decoder.prefill(tokens, rows, cache)


def load(shape: str, form: str, asked: argparse.Namespace) -> Model:
    """Random weights, with caches such as "slim fp8"."""
    preset, _, number = form.partition(" ")
    forms = choose_forms(preset, cache_dtype=number or None)
    dtype = getattr(torch, asked.dtype)
    checkpoint = random_checkpoint(OFFICIAL_DIMS[shape])
    return Model(checkpoint, torch.device(asked.device), dtype, forms)


def time_steps(model: Model, case: dict[str, Any], asked: argparse.Namespace, rows: Rows) -> None:
    """Steps and windows of one form."""
    for windows in asked.windows:
        for beams in asked.beams:
            here = {**case, "batch": windows, "beams": beams}
            step = step_seconds(model, windows, beams, asked.steps) * 1000
            rows.add(**here, what="step", milliseconds=step)
            tokens = {"tokens": asked.tokens, "before": asked.before}
            spent = window_seconds(model, windows, beams, **tokens) * 1000
            rows.add(**here, what="window", **tokens, milliseconds=spent)
            print(
                f"{windows:4} windows, {beams} beams: step {step:9.3f} ms, window {spent:9.2f} ms",
                flush=True,
            )


def profile_parts(
    model: Model, case: dict[str, Any], asked: argparse.Namespace, rows: Rows
) -> None:
    """Encoder, prompt and step of one form; the milliseconds are of a window, or a whole step."""
    device, windows = model.device, max(asked.windows)

    def encoder(together: int) -> Callable[[], object]:
        mel = torch.randn(together, model.dims.n_mels, 3000, device=device)
        return lambda: model.encoder(mel)

    def part(what: str, windows: int, call: Callable[[], object]) -> None:
        total = seconds_of([call], device, asked.repeats) * 1000
        kernels, here = profile(call, device), {**case, "batch": windows}
        launches, busy = sum(k[1] for k in kernels), sum(k[2] for k in kernels)
        each = total if what == "step" else total / windows
        numbers = {"call_ms": total, "launches": round(launches, 1), "busy_ms": round(busy, 4)}
        rows.add(**here, what=what, milliseconds=each, **numbers)
        print(f"{what} of {windows}: {total:.3f} ms; {launches:.0f} launches, busy {busy:.3f} ms")
        for name, calls, spent in kernels[:SHOWN]:
            print(f"  {spent:9.4f} ms  {calls:6.1f} x  {name[:90]}", flush=True)
            kernel = {"part": what, "kernel": name[:120], "calls": calls}
            rows.add(**here, what="kernel", milliseconds=round(spent, 5), **kernel)

    for together in asked.together if case["preset"] == asked.forms[0] else ():
        spent = seconds_of([encoder(together)], device, asked.repeats) * 1000 / together
        print(f"encoder of {together}: {spent:.3f} ms a window")
        rows.add(**case, what="encoder", batch=together, milliseconds=spent)
    engine = full_engine(model, windows, 1, asked.repeats + PROFILED)
    part("step", windows, engine.step)
    if (graphs := engine.lanes[0].graphs) is not None:
        print(f"  graphs: {len(graphs.recorded)}, replays {graphs.replays}, {graphs.failure}")
    group = min(engine.encode_batch, windows)
    del engine
    part("encoder", group, encoder(group))
    part("prompt", group, prompt_of(model, group))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    gpu = torch.cuda.is_available()
    kinds = {"steps": time_steps, "profile": profile_parts}
    parser.add_argument("what", nargs="?", choices=kinds, default="steps")
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="float16" if gpu else "float32")
    shapes = ["tiny", "large-v3"] if gpu else ["tiny"]
    parser.add_argument("--shapes", nargs="+", choices=list(OFFICIAL_DIMS), default=shapes)
    forms = ["slim", "slim fp8", "baseline"]
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=forms)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 16, 64] if gpu else [1, 2])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5] if gpu else [1])
    parser.add_argument("--steps", type=int, default=32 if gpu else 4)
    parser.add_argument("--tokens", type=int, default=100 if gpu else 8)
    parser.add_argument("--before", type=int, default=0, help="at most 223")
    parser.add_argument("--together", type=int, nargs="*", default=[1, 4, 8, 16] if gpu else [1, 2])
    parser.add_argument("--repeats", type=int, default=10 if gpu else 2)
    add_results_flag(parser)
    asked = parser.parse_args()
    bench = "decode" if asked.what == "steps" else "profile"
    rows = Rows(asked.results, bench, torch.device(asked.device))
    for shape in asked.shapes:
        for form in asked.forms:
            model = load(shape, form, asked)
            print(f"== {shape}, {form}: {model.plan.kernels.describe()}", flush=True)
            case = {"model": shape, **preset_of(form), "dtype": asked.dtype}
            with torch.inference_mode():
                kinds[asked.what](model, case, asked, rows)


if __name__ == "__main__":
    main()
