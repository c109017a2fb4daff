"""Writes the configuration table: python bench/tune.py [--widths 384 ...] [--dtypes float16 ...]

Compiles every candidate for compute capabilities 8.0 to 12.0 and drops those that spill or
need too much shared memory. On a GPU it then times the others, on 64 windows of 1,500 positions,
and puts the fastest first; without a GPU the order is that of `candidates`. Rows of other widths
and dtypes do not change. Takes a few seconds per candidate, divided by --jobs; without a GPU it
stops at the first that fits any device. The file is written again after each kernel, dtype and
width, so that a run that is stopped keeps its results.

`--recheck` compiles the table as it is, in all variants, with the Triton that is installed. Rows
that need more than they say are raised to it; rows that spill are dropped. Versions differ, and the
table is for all of them: recheck it with the oldest and the newest.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from compilation import KERNELS, SHARED, compile_for, variants
from rows import Rows, add_results_flag

from slimwhisper.kernels.configurations import TABLE, Configuration, configurations
from slimwhisper.kernels.gpu.heads import split_heads
from slimwhisper.kernels.gpu.latent import split_latent

WIDTHS = (64, 128, 384, 512, 768, 1024, 1280)
DTYPES = ("float16", "float32")
WINDOWS, POSITIONS = 64, 1500

HEADS_SHAPES = ((128, 2), (64, 3), (64, 2), (32, 2), (16, 2))  # positions per tile, stages
# (positions per tile, stages, warps, slices, columns per load), likely best first
SLICED_SHAPES = ((32, 3, 8, 8, 256), (32, 2, 8, 8, 256), (16, 3, 8, 8, 256), (16, 2, 8, 8, 256))
WHOLE_SHAPES = (
    *((64, 3, 4, 1, 128), (64, 2, 4, 1, 128), (32, 3, 4, 1, 128), (32, 2, 4, 1, 128)),
    *((32, 2, 8, 1, 256), (16, 2, 4, 1, 128), (16, 2, 8, 1, 256), (16, 1, 8, 1, 128)),
)
FLOAT32_SHAPES = ((32, 2, 8, 1, 128), (16, 2, 8, 1, 128), (16, 1, 8, 1, 128))


def candidates(kernel: str, dtype: str, width: int) -> Iterator[Configuration]:
    """Configurations worth compiling."""
    make = partial(Configuration, kernel, dtype, width, shared=0, registers=0)
    if kernel == "heads":
        for block_q, (block_t, stages) in product((16, 32), HEADS_SHAPES):
            yield make(width, 1, block_q, block_t, stages, 4)
        return
    whole = width & -width  # the largest power of two that divides it
    whole_precision = dtype == "float32"  # no tensor cores: small tiles
    most = 16 if whole_precision else 64 if width < 768 else 32
    shapes: Sequence[tuple[int, ...]] = (*SLICED_SHAPES, *WHOLE_SHAPES)
    if whole_precision:
        shapes = FLOAT32_SHAPES
    elif width < 1024:
        shapes = WHOLE_SHAPES
    for block_q in (b for b in (16, 32, 64) if b <= most):
        for block_t, stages, warps, slices, block_d in shapes:
            sliced = slices if whole >= block_d else 1
            yield make(min(block_d, whole), sliced, block_q, block_t, stages, warps)


def compiled(candidate: Configuration) -> Configuration | None:
    """The candidate with what it needs, if that is more than it says; None if it is not usable.

    Its least capability is that from which on it neither spills nor fails to compile; but newer
    ones for which it does may have a row before it.
    """
    shared, registers, capability = candidate.shared, candidate.registers, 0
    for tried in sorted(SHARED, reverse=True):
        try:
            results = [compile_for(tried, variant) for variant in variants(candidate)]
        except Exception as error:
            print(f"  no: {candidate}: {str(error)[-100:]}")
            results = []
        well = results and not any(made.stack for made in results)
        if capability and not well:
            break
        needed = max((made.shared for made in results), default=0)
        if well and needed <= SHARED[tried]:  # elsewhere it is not launched
            shared = max(shared, needed)
            registers = max(registers, *(made.registers for made in results))
            capability = tried
    if not capability:
        return None
    capability = max(capability, candidate.capability)
    return replace(candidate, shared=shared, registers=registers, capability=capability)


def milliseconds(c: Configuration) -> float:
    """The time of one call on the GPU, with as many queries per window as the shape takes."""
    from triton.testing import do_bench

    dtype = getattr(torch, c.dtype)
    if c.kernel != "heads":
        queries = torch.randn(WINDOWS, c.block_q, c.width, device="cuda", dtype=dtype)
        latent = torch.randn(WINDOWS, POSITIONS, c.width, device="cuda", dtype=dtype)
        return do_bench(lambda: split_latent(queries, latent, 0.01, c, 2), return_mode="median")
    queries = torch.randn(WINDOWS * c.block_q, 8, c.width, device="cuda", dtype=dtype)
    shape = (2, WINDOWS, 8, POSITIONS, c.width)
    keys, values = torch.randn(shape, device="cuda", dtype=dtype).unbind(0)
    return do_bench(lambda: split_heads(queries, keys, values, c, 1), return_mode="median")


def useful(shapes: list[Configuration]) -> list[Configuration]:
    """In order, those that some device would use: each needs less of something than all before."""
    useful_ones: list[Configuration] = []
    for c in shapes:
        if all(c.shared < k.shared or c.capability < k.capability for k in useful_ones):
            useful_ones.append(c)
    return useful_ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    parser.add_argument("--jobs", type=int, default=1, help="candidates compiled at a time")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write")
    parser.add_argument("--recheck", action="store_true", help="compile the table as it is")
    add_results_flag(parser)
    args = parser.parse_args()
    run = recheck if args.recheck else tune
    if args.jobs > 1:
        # spawned, because a fork cannot use CUDA once its parent has
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            run(args, pool.imap)
    else:
        run(args, map)


def recheck(args: argparse.Namespace, each: Callable[..., Iterator[Configuration | None]]) -> None:
    """Keep the rows that compile well, with what they need; `each` as `map`."""
    write([c for c in each(compiled, configurations()) if c], args.table)


def tune(args: argparse.Namespace, each: Callable[..., Iterator[Configuration | None]]) -> None:
    """Choose, and write the table after every kernel, dtype and width. each: as `map`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = Rows(args.results, "tune", device)
    pairs = [*(("latent", width) for width in args.widths), ("heads", 64)]
    todo = [(kernel, dtype, width) for kernel, width in pairs for dtype in args.dtypes]
    todo = [t for t in todo if t[0] in args.kernels]
    compiling: dict[tuple[str, str, int], dict[int, Iterator[Configuration | None]]] = {}
    for kind in todo:  # all at once, so that a pool's processes never wait
        all_candidates = list(candidates(*kind))
        compiling[kind] = {
            block_q: each(compiled, [c for c in all_candidates if c.block_q == block_q])
            for block_q in sorted({c.block_q for c in all_candidates})
        }
    table = list(configurations())
    for (kernel, dtype, width), by_block in compiling.items():
        table = [c for c in table if (c.kernel, c.dtype, c.width) != (kernel, dtype, width)]
        for block_q, results in by_block.items():
            shapes = usable(results, stop=device.type == "cpu")
            if device.type == "cuda":
                shapes = fastest(shapes, rows)
            chosen = useful(shapes)
            table += chosen
            print(f"{kernel} {dtype} {width} {block_q}: {len(chosen)}", flush=True)
        write(table, args.table)
    print(f"{args.table}: {len(table)} configurations")


def usable(results: Iterator[Configuration | None], stop: bool) -> list[Configuration]:
    """Those that compiled well, in order; with `stop`, up to the first that fits any device."""
    shapes: list[Configuration] = []
    for c in results:
        if c is not None:
            shapes.append(c)
            if stop and c.shared <= min(SHARED.values()) and c.capability == min(SHARED):
                break
    return shapes


def fastest(shapes: list[Configuration], rows: Rows) -> list[Configuration]:
    """Sorted by their time on the GPU; those that it cannot hold, or run, come last."""
    properties: Any = torch.cuda.get_device_properties(0)
    limit = properties.shared_memory_per_block_optin
    times: dict[Configuration, float] = {}
    for c in shapes:
        if c.shared > limit:
            continue
        try:
            times[c] = milliseconds(c)
        except Exception as error:  # whatever the driver says, the others can be timed
            print(f"  does not run: {c}: {str(error)[-100:]}")
            continue
        rows.add(what="configuration", milliseconds=times[c], **asdict(c))
        print(f"  {times[c]:.3f} ms {c}", flush=True)
    return sorted(shapes, key=lambda c: times.get(c, float("inf")))


def write(table: list[Configuration], path: Path) -> None:
    """Write the table as `configurations` reads it; rows of one kind stay in order, best first."""
    table.sort(key=lambda c: (c.kernel, c.dtype, c.width, c.block_q))
    lines = ",\n ".join(json.dumps(asdict(c)) for c in table)
    path.write_text(f"[{lines}]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
