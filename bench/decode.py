"""Times whole decode steps and whole windows: python bench/decode.py [--shapes large-v3] ...

Random checkpoints of official shapes, for each form of cache, number of windows and beams, in one
run. A step is the engine's, from the embedding to the next token including the rules, as a CUDA
graph on a GPU, at about 230 tokens of context. A window is encoded, reads a prompt with --before
tokens of earlier text, and samples --tokens tokens. Ratios are relative to the first form. Prints a
table, writes decode-SHAPE.png, and ends in one line of JSON. With --results, also appends each
measurement to a file at once.
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from rows import Rows, add_results_flag, preset_of
from timing import machine, plot, synchronize

from slimwhisper.cache.forms import PRESETS, choose_forms
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search, Window
from slimwhisper.engine.rules import make_rules
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Options

FORMS = (*PRESETS, "slim fp8")
CONTEXT = 200  # prompt tokens before the text
WARM_UP = 6  # steps: the first runs without a graph, the second is recorded


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
    """An engine whose slots all decode, warmed up, and with room for `steps` more steps."""
    engine = _engine(model, windows, beams, check_every=1000)
    for tag in range(windows):
        engine.submit(tag, window(model, WARM_UP + steps + 4, CONTEXT))
    for _ in range(WARM_UP):
        engine.step()
    return engine


def window_seconds(model: Model, windows: int, beams: int, tokens: int, before: int) -> float:
    """The time of all windows of a full engine; the second run, when everything is compiled."""
    engine = _engine(model, windows, beams)
    for _ in range(2):
        synchronize(model.device)
        since = time.perf_counter()
        for tag in range(windows):
            engine.submit(tag, window(model, tokens, before))
        while not engine.idle:
            for ticket, _ in engine.step():
                engine.reply(ticket, None)
        synchronize(model.device)
    return (time.perf_counter() - since) / windows


def _engine(model: Model, windows: int, beams: int, check_every: int | None = None) -> Engine:
    gc.collect()  # the caches of an engine before it may leave no room
    search = Search(beams=beams if beams > 1 else None)
    return Engine(model, get_vocabulary(model.dims), windows, search, check_every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="float16" if gpu else "float32")
    shapes = list(OFFICIAL_DIMS)
    parser.add_argument(
        "--shapes", nargs="+", choices=shapes, default=["tiny", "large-v3"] if gpu else ["tiny"]
    )
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=("baseline", "slim", "slim fp8")
    )
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 16, 64] if gpu else [1, 2])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5] if gpu else [1])
    parser.add_argument("--steps", type=int, default=32 if gpu else 4)
    parser.add_argument("--tokens", type=int, default=100 if gpu else 8)
    parser.add_argument("--before", type=int, default=0, help="at most 223")
    parser.add_argument("--output_dir", type=Path, default=Path())
    parser.add_argument("--no_plot", action="store_true")
    add_results_flag(parser)
    asked = parser.parse_args()

    device, dtype = torch.device(asked.device), getattr(torch, asked.dtype)
    rows = Rows(asked.results, "decode", device)
    results: list[dict[str, Any]] = []
    for shape in asked.shapes:
        checkpoint = random_checkpoint(OFFICIAL_DIMS[shape])
        for form in asked.forms:
            name, _, number = form.partition(" ")
            model = Model(checkpoint, device, dtype, choose_forms(name, cache_dtype=number or None))
            for windows in asked.windows:
                for beams in asked.beams:
                    row: dict[str, Any] = {
                        "shape": shape,
                        "form": form,
                        "windows": windows,
                        "beams": beams,
                    }
                    case = {"model": shape, **preset_of(form), "dtype": asked.dtype}
                    case |= {"batch": windows, "beams": beams}
                    row["step_ms"] = step_seconds(model, windows, beams, asked.steps) * 1000
                    rows.add(**case, what="step", milliseconds=row["step_ms"])
                    tokens = asked.tokens, asked.before
                    row["window_ms"] = window_seconds(model, windows, beams, *tokens) * 1000
                    rows.add(
                        **case,
                        what="window",
                        tokens=asked.tokens,
                        before=asked.before,
                        milliseconds=row["window_ms"],
                    )
                    results.append(row)
                    base = next(r for r in results if _same(r, row))
                    row["step_ratio"] = base["step_ms"] / row["step_ms"]
                    row["window_ratio"] = base["window_ms"] / row["window_ms"]
                    print(
                        f"{shape:9} {form:9} {windows:4} windows, {beams} beams: "
                        f"step {row['step_ms']:9.3f} ms ({row['step_ratio']:.2f}x {base['form']}), "
                        f"window {row['window_ms']:9.2f} ms ({row['window_ratio']:.2f}x)",
                        flush=True,
                    )
            print(f"  {model.plan.kernels.describe()}")
            del model
        if asked.no_plot:
            continue
        curves: dict[str, dict[float, float]] = {}
        for row in results:
            if row["shape"] == shape and row["beams"] == asked.beams[0]:
                each = row["step_ms"] * 1000 / row["windows"]
                curves.setdefault(row["form"], {})[row["windows"]] = each
        path = asked.output_dir / f"decode-{shape}.png"
        plot(path, f"{shape}: a decode step", "microseconds a window", curves)
    rounded = [
        {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in results
    ]
    print(json.dumps({"machine": machine(device), "dtype": asked.dtype, "results": rounded}))


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[k] == other[k] for k in ("shape", "windows", "beams"))


if __name__ == "__main__":
    main()
