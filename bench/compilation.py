"""Compiles every kernel as it is launched, for GPUs that this machine need not have.

    python bench/compilation.py [--some] [--table] [--width 1280] [--capabilities 90]

prints a line of JSON for each variant: registers, bytes of stack and of shared memory, and how many
blocks of it a multiprocessor holds; or its error. The last line, on stderr, counts them. The exit
status is 1 if one does not compile or has a stack. --some: a part of the variants. --table: only
those that read whole windows, in a table. --rocm gfx942: for one of AMD's GPUs instead, the
variants that its 64 KiB hold; without registers and stack. With another Triton:

    pip install --no-deps --target triton-3.7.1 triton==3.7.1
    PYTHONPATH=triton-3.7.1 python bench/compilation.py
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slimwhisper.cache.base import PAGE
from slimwhisper.kernels.configurations import (
    MAX_SPLITS,
    Configuration,
    TritonDevice,
    configurations,
)
from slimwhisper.kernels.gpu import choose_token, combine, heads, latent, norm

KERNELS = {"latent": latent.split_latent_kernel, "heads": heads.split_heads_kernel}
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# capability: bytes of shared memory a block may have
SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
ROCM_SHARED, ROCM_WARP = 65_536, 64  # of gfx9
STRIDED = ("query_", "latent_", "out_", "cache_")
NAMED = ("FP8", "RULES")
HALVES = ("float16", "bfloat16")
WIDEST, HEAD = 1280, 64  # d and d_k of the largest model
COLUMNS = "capability kernel dtype width block_q warps registers stack shared blocks".split()


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled kernel uses."""

    registers: int  # per thread
    stack: int  # bytes per thread: what was spilled
    shared: int  # bytes per block


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a kernel is launched, apart from what is a number at run time.

    Of the attention kernels, slots, lengths and splits are such numbers. Without flags a variant
    serves cross-attention; a bias for each position is launched where neighbouring frames are
    merged. PAGE is launched by self-attention, whose texts are each a window of its own. A
    configuration for float16 also serves bfloat16.

    Of the others: `combine` and `combine_mapped` end a split attention, here of the widest model
    and of the most parts; `add_norm` follows a block or is the first, before self-attention it
    keeps the row, as it is or in float8, and in the encoder it adds biases that the stream lacks;
    `choose_token` has rules of timestamps or has none.
    """

    kernel: str
    dtype: str
    configuration: Configuration | None = None
    flags: tuple[str, ...] = ()  # which of the kernel's flags are set


def variants(c: Configuration) -> list[Variant]:
    """In which ways a configuration is launched."""
    heads = 1 if c.kernel == "heads" else c.width // HEAD  # queries of a text
    dtypes = HALVES if c.dtype == "float16" else (c.dtype,)
    # smaller blocks hold a text's queries, and are chosen
    pages = c.block_q < 2 * max(heads, 16)
    bias = c.kernel != "heads"
    every = [(), *[("HAS_BIAS",)] * bias, *[("PAGE",)] * pages]
    return [Variant(c.kernel, dtype, c, flags) for flags in every for dtype in dtypes]


def other_variants() -> Iterator[Variant]:
    """Those of kernels with a single configuration."""
    writes: tuple[tuple[str, ...], ...] = ((), ("HAS_WRITE",), ("HAS_WRITE", "FP8"))
    for dtype in TYPES:
        yield Variant("combine", dtype)
        yield Variant("combine_mapped", dtype)
        for addend, write in product(((), ("HAS_ADDEND",)), writes):
            yield Variant("add_norm", dtype, None, (*addend, *write))
        if dtype in HALVES:
            yield Variant("add_norm", dtype, None, ("HAS_SHIFT",))
    yield Variant("choose_token", "float32")
    yield Variant("choose_token", "float32", None, ("RULES",))


def compile_for(capability: int, variant: Variant, rocm: str | None = None) -> Compiled:
    """Compile for a compute capability such as 90, with rows aligned to 16 bytes as in torch.

    rocm: for this processor instead, such as "gfx942".

    Raises what Triton raises if it cannot.
    """
    kernel, constants, types, warps, stages = _launch(variant, capability)
    names = kernel.arg_names
    flags = [name for name in names if name.startswith("HAS_") or name in NAMED]
    constants |= {name: name in variant.flags for name in flags}
    constants = {name: value for name, value in constants.items() if name in names}
    types |= {"scale_log2": "fp32", "epsilon": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, type_) in enumerate(signature.items())
        if type_.startswith("*") or (type_ == "i32" and name.startswith(STRIDED))
    }
    target = GPUTarget("hip", rocm, ROCM_WARP) if rocm else GPUTarget("cuda", capability, 32)
    made = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=target,
        options={"num_warps": warps, "num_stages": stages},
    )
    registers, stack = (0, 0) if rocm else resources(made.asm["cubin"])
    return Compiled(registers, stack, made.metadata.shared)


def _launch(
    variant: Variant, capability: int
) -> tuple[Any, dict[str, Any], dict[str, str], int, int]:
    """The kernel, its constants but for flags, its pointers' types, its warps and its stages."""
    kind, c = f"*{TYPES[variant.dtype]}", variant.configuration
    precision = "ieee" if variant.dtype == "float32" else "tf32"
    parts = {"sums": "*fp32", "stats": "*fp32", "out": kind}
    if c is not None:
        constants: dict[str, Any] = {"D": c.width, "BLOCK_D": c.block_d, "SLICES": c.slices}
        constants |= {"BLOCK_Q": c.block_q, "BLOCK_T": c.block_t, "STAGES": c.stages}
        constants |= {"PRECISION": c.precision, "PAGE": PAGE if "PAGE" in variant.flags else 0}
        pointers = parts | dict.fromkeys(("queries", "latent", "keys", "values"), kind)
        pointers |= dict.fromkeys(("slots", "block_table", "lengths"), "*i64")
        pointers["bias"] = "*fp32"
        return KERNELS[c.kernel], constants, pointers, c.warps, c.stages
    splits = 1 << (MAX_SPLITS - 1).bit_length()
    constants = {"D": WIDEST, "BLOCK_D": 2048, "MAX_SPLITS": splits}
    if variant.kernel == "combine":
        return combine.combine_kernel, constants, parts, 4, 3
    if variant.kernel == "combine_mapped":
        constants |= {"WIDTH": HEAD, "BLOCK_N": combine.ROWS, "BLOCK_D": combine.BLOCK_D}
        constants |= {"PRECISION": precision, "MAX_SPLITS": combine.MAX_MAPPED_SPLITS}
        return combine.combine_mapped_kernel, constants, parts | {"maps": kind}, 4, 3
    if variant.kernel == "add_norm":  # where nothing is stored, the arguments for it are x
        names = ("x", "addend", "total", "normed", "cache", "factors", "ids", "positions")
        pointers = dict.fromkeys((*names, "column_scales", "offset"), kind)
        pointers |= {"weight": "*fp32", "bias": "*fp32"}
        pointers["shift"] = "*fp32" if "HAS_SHIFT" in variant.flags else kind
        if "HAS_WRITE" in variant.flags:
            pointers |= {"ids": "*i64", "positions": "*i64"}
        if "FP8" in variant.flags:
            pointers |= {"cache": "*u8", "factors": "*fp32"}
        return norm.add_norm_kernel, constants, pointers, 4, 3
    pointers = {"logits": "*fp32", "logprobs": "*fp32", "tokens": "*i64"}
    pointers |= dict.fromkeys(("initial_limit", "latest", "count"), "*i64")
    pointers |= dict.fromkeys(("enabled", "last", "before_last"), "*u8")
    return choose_token.choose_token_kernel, {"BLOCK": choose_token.BLOCK}, pointers, 8, 3


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) as read by cuobjdump, which comes with Triton."""
    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    match = re.search(r"REG:(\d+) STACK:(\d+)", out.stdout)
    assert match, out.stdout
    return int(match[1]), int(match[2])


def jobs(every: bool = True, shared: Mapping[int, int] = SHARED) -> list[tuple[int, Variant]]:
    """What to compile, for each capability: all variants of all configurations that are chosen for
    it, with so many bytes of shared memory. Not `every`: a tenth, of each way of launching and for
    each capability.
    """
    chosen: dict[tuple[Any, ...], Configuration] = {}  # the first that fits
    for c, (capability, limit) in product(configurations(), shared.items()):
        if c.fits(capability, limit):
            chosen.setdefault((capability, c.kernel, c.dtype, c.width, c.block_q), c)
    all_jobs = [(key[0], v) for key, c in chosen.items() for v in variants(c)]
    all_jobs += [(capability, v) for v in other_variants() for capability in shared]
    if every:
        return all_jobs
    ways: dict[tuple[str, str, tuple[str, ...]], list[tuple[int, Variant]]] = {}
    for job in all_jobs:
        ways.setdefault((job[1].kernel, job[1].dtype, job[1].flags), []).append(job)
    # each way begins with another capability, and 13 is no multiple of their number
    firsts = ((i % min(len(shared), len(alike)), alike) for i, alike in enumerate(ways.values()))
    return [job for first, alike in firsts for job in alike[first::13]]


def _line(job: tuple[int, Variant], rocm: str | None) -> dict[str, Any]:
    """What `compile_for` gives, or the error that it raises."""
    (capability, variant), c = job, job[1].configuration
    try:
        made = asdict(compile_for(capability, variant, rocm))
        if c is not None:
            needs = replace(c, shared=made["shared"], registers=made["registers"])
            made["blocks"] = TritonDevice(SHARED[capability], 1, capability).programs(needs)
    except Exception as error:
        made = {"error": f"{type(error).__name__}: {str(error).strip()[-200:]}"}
    return {"capability": capability, **asdict(variant), **made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--some", action="store_true", help="a part of the variants")
    parser.add_argument("--table", action="store_true", help="of attention to whole windows")
    parser.add_argument("--width", type=int, help="only attention of this d, or d_k")
    parser.add_argument("--capabilities", type=int, nargs="+", default=SHARED, choices=SHARED)
    parser.add_argument("--rocm", help="a processor, such as gfx942")
    parser.add_argument("--jobs", type=int, help="processes [one for each core]")
    args = parser.parse_args()
    lines = []
    shared = {at: SHARED[at] for at in args.capabilities}
    # ROCm runs what a device of compute capability 8.0 does (`dispatch`)
    todo = jobs(not args.some, {80: ROCM_SHARED} if args.rocm else shared)
    if width := args.width:
        todo = [(at, v) for at, v in todo if v.configuration and v.configuration.width == width]
    if args.table:
        todo = [(at, v) for at, v in todo if v.configuration and not v.flags]
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with Pool(args.jobs) as pool:
        for line in pool.imap(partial(_line, rocm=args.rocm), todo):
            cells = (str(({**(line["configuration"] or {}), **line}).get(name)) for name in COLUMNS)
            print(f"| {' | '.join(cells)} |" if args.table else json.dumps(line), flush=True)
            lines.append(line)
    failed = sum("error" in line for line in lines)
    stacks = sum(line.get("stack", 0) > 0 for line in lines)
    counts = f"{len(lines)} variants, {failed} failed, {stacks} with a stack"
    print(f"Triton {triton.__version__}: {counts}", file=sys.stderr)
    sys.exit(1 if failed or stacks else 0)


if __name__ == "__main__":
    main()
