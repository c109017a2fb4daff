"""Times decoding with random weights: python bench/decode.py [KIND] [--shapes ...]

    steps     for every form of cache, number of windows and beams: a step with all windows in it,
              on a GPU a CUDA graph, and whole windows
    profile   encoder, prompts of 227 tokens and a step, kernel by kernel (on a CPU, operators)
    prompts   starting 1, 2, 4, 8 windows with prompts of 4 to 227 tokens, the first time and later
    waits     on a GPU, the lines of code at which the host waits while windows start and end

Prints tables; with --results, appends each row to a file as soon as it is measured.
"""

import argparse
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from engines import (
    decode,
    full_engine,
    make_engine,
    make_parser,
    models,
    only_replays,
    window,
    without_encoder,
)
from rows import Rows
from timing import seconds_of, synchronize

from slimwhisper.cache.base import Rows as CacheRows
from slimwhisper.cache.base import pages_of
from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.model.model import Model

SHOWN = 15  # kernels of each part
PROMPT = 227  # tokens: all of the text before that fits, and what starts a window
PROMPTS = (4, 60, 120, PROMPT)
PROFILED = 2  # calls


def step_seconds(model: Model, windows: int, beams: int, steps: int) -> float:
    """The mean time of a step with all windows in it."""
    engine = full_engine(model, windows, beams)
    with only_replays(engine, steps):
        synchronize(model.device)
        since = time.perf_counter()
        for _ in range(steps):
            engine.step()
        synchronize(model.device)
        return (time.perf_counter() - since) / steps


def window_seconds(model: Model, windows: int, beams: int, tokens: int, before: int) -> float:
    """The time of all windows of a full engine; the third run, when all graphs are recorded."""
    engine = make_engine(model, windows, beams)
    some = [window(model, tokens, before)] * windows
    return [decode(engine, some)[0] for _ in range(3)][-1] / windows


def profile(
    call: Callable[[], object], device: torch.device, calls: int = PROFILED
) -> list[tuple[str, float, float]]:
    """The kernels of a call that has run before, the longest first: name, calls, milliseconds."""
    gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if gpu else activity.CPU]) as seen:
        for _ in range(calls):
            call()
        synchronize(device)
    events = []
    for event in seen.key_averages():
        spent = (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1000
        if spent > 0:  # with a GPU, the calls of CUDA's runtime take none there
            events.append((event.key, event.count / calls, spent / calls))
    return sorted(events, key=lambda kernel: -kernel[2])


@torch.inference_mode()
def prompt_of(model: Model, windows: int) -> Callable[[], object]:
    """A call that reads prompts of `PROMPT` tokens for `windows` windows."""
    cache = DecoderCache(model.allocate_cross(windows), model.allocate_self(windows))
    pages = pages_of(model.dims.n_text_ctx)
    table = torch.arange(windows * pages, device=model.device).view(windows, pages)
    rows = replace(CacheRows.block(windows, device=model.device), table=table)
    features = torch.randn(windows, model.dims.n_audio_ctx, model.dims.n_audio_state)
    cache.cross.put(rows.slots, features.to(model.device, model.dtype))
    tokens = torch.full((windows, PROMPT), 1000, device=model.device)
    needed = torch.full((windows, 2), PROMPT - 1, device=model.device)
    return lambda: model.decoder.prefill(tokens, rows, cache, positions=needed)


def time_steps(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """Steps and windows of one form."""
    for windows in args.windows:
        for beams in args.beams:
            elapsed = {**case, "batch": windows, "beams": beams}
            step = step_seconds(model, windows, beams, args.steps) * 1000
            rows.add(**elapsed, what="step", milliseconds=step)
            tokens = {"tokens": args.tokens, "before": args.before}
            spent = window_seconds(model, windows, beams, **tokens) * 1000
            rows.add(**elapsed, what="window", **tokens, milliseconds=spent)
            at = f"{windows:4} windows, {beams} beams"
            print(f"{at}: step {step:9.3f} ms, window {spent:9.2f} ms", flush=True)


def profile_parts(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """Encoder, prompt and step of one form; the milliseconds are of a window, or a whole step."""
    device, windows = model.device, max(args.windows)

    def encoder(batch: int) -> Callable[[], object]:
        mel = torch.randn(batch, model.dims.n_mels, 3000, device=device)
        return lambda: model.encoder(mel)

    def part(what: str, windows: int, call: Callable[[], object]) -> None:
        total = seconds_of([call], device, args.repeats) * 1000
        kernels, elapsed = profile(call, device), {**case, "batch": windows}
        launches, busy = sum(k[1] for k in kernels), sum(k[2] for k in kernels)
        each = total if what == "step" else total / windows
        numbers = {"call_ms": total, "launches": round(launches, 1), "busy_ms": round(busy, 4)}
        rows.add(**elapsed, what=what, milliseconds=each, **numbers)
        print(f"{what} of {windows}: {total:.3f} ms; {launches:.0f} launches, busy {busy:.3f} ms")
        for name, calls, spent in kernels[:SHOWN]:
            print(f"  {spent:9.4f} ms  {calls:6.1f} x  {name[:90]}", flush=True)
            kernel = {"part": what, "kernel": name[:120], "calls": calls}
            rows.add(**elapsed, what="kernel", milliseconds=round(spent, 5), **kernel)

    for batch in args.together if case["preset"] == args.forms[0] else ():
        spent = seconds_of([encoder(batch)], device, args.repeats) * 1000 / batch
        print(f"encoder of {batch}: {spent:.3f} ms a window")
        rows.add(**case, what="encoder", batch=batch, milliseconds=spent)
    engine = full_engine(model, windows, 1)
    with only_replays(engine, 1 + args.repeats + PROFILED):
        part("step", windows, engine.step)
    group = min(engine.encode_batch, windows)
    del engine
    part("encoder", group, encoder(group))
    part("prompt", group, prompt_of(model, group))


def time_prompts(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """From windows that are encoded to their first token: `first` time in milliseconds, and later.
    All of it in milliseconds of the whole group.
    """
    with without_encoder(model):
        engine = make_engine(model, max(args.together), 1)
        for tokens in PROMPTS:
            for windows in args.together:
                some = [window(model, 1, tokens - 4)] * windows
                first, *later = (1000 * decode(engine, some)[0] for _ in range(1 + args.repeats))
                usual = statistics.median(later)
                times = {"first_ms": first, "milliseconds": usual}
                rows.add(**case, what="start", batch=windows, prompt=tokens, **times)
                print(f"{windows} windows, {tokens:3} tokens: first {first:8.2f} ms, {usual:8.2f}")


def count_waits(model: Model, case: dict[str, Any], args: argparse.Namespace, rows: Rows) -> None:
    """Where the host waits for the GPU, by line, while windows with prompts of several lengths
    start and end; without what happens once.
    """
    windows = max(args.windows)
    some = [window(model, args.tokens, i % 8 * 16) for i in range(3 * windows)]
    engine = make_engine(model, windows, 1)
    decode(engine, some)
    gpu = model.device.type == "cuda"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            decode(engine, some)
        finally:
            if gpu:
                torch.cuda.set_sync_debug_mode("default")
    waits = Counter(f"{w.filename.split('slimwhisper/')[-1]}:{w.lineno}" for w in seen)
    print(f"{len(some)} windows: the host waits {waits.total()} times")
    for line, count in waits.most_common():
        print(f"  {count:6} {line}")
        rows.add(**case, what="wait", batch=windows, line=line, count=count)


KINDS = {
    "steps": time_steps,
    "profile": profile_parts,
    "prompts": time_prompts,
    "waits": count_waits,
}


def main() -> None:
    gpu = torch.cuda.is_available()
    shapes = ["tiny", "large-v3"] if gpu else ["tiny"]
    parser = make_parser(__doc__, shapes, "slim", "slim-fp8", "baseline")
    parser.add_argument("kind", nargs="?", choices=KINDS, default="steps")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 16, 64] if gpu else [1, 2])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5] if gpu else [1])
    parser.add_argument("--steps", type=int, default=32 if gpu else 4)
    parser.add_argument("--tokens", type=int, default=100 if gpu else 8)
    parser.add_argument("--before", type=int, default=0, help="at most 223")
    parser.add_argument("--together", type=int, nargs="*", default=[1, 4, 8, 16] if gpu else [1, 2])
    parser.add_argument("--repeats", type=int, default=10 if gpu else 2)
    args = parser.parse_args()
    bench = "decode" if args.kind == "steps" else args.kind
    rows = Rows(args.results, bench, torch.device(args.device))
    for model, case in models(args):
        with torch.inference_mode():
            KINDS[args.kind](model, case, args, rows)


if __name__ == "__main__":
    main()
