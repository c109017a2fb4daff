"""Compiles every kernel as it is launched, for GPUs that this machine need not have.

    python bench/compilation.py [--some]

prints a line of JSON for each variant: registers, bytes of stack and of shared memory. --some: a
quarter of them, as in `jobs`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slimwhisper.cache.pool import PAGE
from slimwhisper.kernels.configurations import Configuration, Processor, configurations, find
from slimwhisper.kernels.gpu.choose_token import BLOCK, choose_token_kernel
from slimwhisper.kernels.gpu.combine import (
    BLOCK_D,
    ROWS,
    combine_kernel,
    combine_mapped_kernel,
    stages_of,
)
from slimwhisper.kernels.gpu.heads import split_heads_kernel
from slimwhisper.kernels.gpu.latent import split_latent_kernel
from slimwhisper.kernels.gpu.latent8 import CONVERTS, split_latent8_kernel
from slimwhisper.kernels.gpu.norm import add_norm_kernel

KERNELS = {
    "latent": split_latent_kernel,
    "latent8": split_latent8_kernel,
    "heads": split_heads_kernel,
}
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# capability: bytes of shared memory a block may have
SHARED = {80: 166_912, 89: 101_376, 90: 232_448}
STRIDED = ("query_", "latent_", "out_", "kept_", "source_")
NAMED = ("EIGHT", "RULES")
HALVES = ("float16", "bfloat16")
WIDEST, HEAD, MOST_SPLITS = 1280, 64, 16  # d and d_k of the largest model


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
    merged. PAGE is launched by self-attention, whose texts are each a window of its own; with
    limits where several tokens of a text are decoded in a step, which none in float8 is. A
    configuration for float16 also serves bfloat16; `latent8` computes in float16 only.

    Of the others: `combine` and `combine_mapped` end a split attention, here of the widest model
    and of the most parts; `add_norm` follows a block or is the first, and before self-attention it
    keeps the row, as it is or in float8; `choose_token` has rules of timestamps or has none.
    """

    kernel: str
    dtype: str
    configuration: Configuration | None = None
    flags: tuple[str, ...] = ()  # which of the kernel's flags are set


def variants(configuration: Configuration, capability: int) -> list[Variant]:
    """In which ways a configuration is launched on GPUs of a compute capability."""
    c = configuration
    heads = 1 if c.kernel == "heads" else c.width // HEAD  # queries of a text
    dtypes = HALVES if c.kernel != "latent8" and c.dtype == "float16" else (c.dtype,)
    # smaller blocks hold a text's queries, and are chosen
    pages = c.block_q < 2 * max(heads, 16)
    bias = c.kernel != "heads"
    # a step's tokens are at least two: blocks that are too small for them are not chosen
    processor = Processor(SHARED[capability], 1, capability)
    chosen = find(c.kernel, c.dtype, c.width, 2 * heads, processor)
    enough = chosen is None or c.block_q >= chosen.block_q
    limits = enough and c.kernel != "latent8"
    every = [(), *[("HAS_BIAS",)] * bias, *[("PAGE",)] * pages]
    every += [("PAGE", "HAS_LIMITS")] * limits
    return [Variant(c.kernel, dtype, c, flags) for flags in every for dtype in dtypes]


def other_variants() -> Iterator[Variant]:
    """Those of kernels with a single configuration."""
    places: tuple[tuple[str, ...], ...] = ((), ("HAS_PLACE",), ("HAS_PLACE", "EIGHT"))
    for dtype in TYPES:
        yield Variant("combine", dtype)
        yield Variant("combine_mapped", dtype)
        yield Variant("combine_mapped", dtype, None, ("FEW",))  # parts, so that more is in flight
        for addend, place in product(((), ("HAS_ADDEND",)), places):
            yield Variant("add_norm", dtype, None, (*addend, *place))
    yield Variant("choose_token", "float32")
    yield Variant("choose_token", "float32", None, ("RULES",))


def compile_for(capability: int, variant: Variant) -> Compiled:
    """Compile for a compute capability such as 90, with rows aligned to 16 bytes as in torch.

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
    made = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    registers, stack = _resources(made.asm["cubin"])
    return Compiled(registers, stack, made.metadata.shared)


def _launch(
    variant: Variant, capability: int
) -> tuple[Any, dict[str, Any], dict[str, str], int, int]:
    """The kernel, its constants but for flags, its pointers' types, its warps and its stages."""
    kind, c = f"*{TYPES[variant.dtype]}", variant.configuration
    precision = "ieee" if variant.dtype == "float32" else "tf32"
    parts = {"sums": "*fp32", "stats": "*fp32", "out": kind}
    if c is not None:
        constants: dict[str, Any] = {"D": c.width, "PIECE": c.piece, "SLICES": c.slices}
        constants |= {"BLOCK_Q": c.block_q, "BLOCK_T": c.block_t, "STAGES": c.stages}
        constants |= {"CONVERT": capability >= CONVERTS, "PRECISION": c.precision}
        constants["PAGE"] = PAGE if "PAGE" in variant.flags else 0
        pointers = parts | dict.fromkeys(("queries", "latent", "keys", "values"), kind)
        pointers |= dict.fromkeys(("slots", "table", "lengths"), "*i64")
        if c.kernel == "latent8":
            pointers |= {"latent": "*u16", "factors": "*fp32"}
        pointers["bias"] = "*fp32"
        return KERNELS[c.kernel], constants, pointers, c.warps, c.stages
    constants = {"D": WIDEST, "BLOCK_D": 2048, "MOST": MOST_SPLITS}
    if variant.kernel == "combine":
        return combine_kernel, constants, parts, 4, 3
    if variant.kernel == "combine_mapped":
        constants |= {"WIDTH": HEAD, "BLOCK_N": ROWS, "BLOCK_D": BLOCK_D, "PRECISION": precision}
        constants["MOST"] = most = 4 if "FEW" in variant.flags else MOST_SPLITS
        return combine_mapped_kernel, constants, parts | {"maps": kind}, 4, stages_of(most)
    if variant.kernel == "add_norm":  # where nothing is kept, the arguments for it are x
        names = ("x", "addend", "total", "normed", "kept", "factors", "ids", "positions")
        pointers = dict.fromkeys((*names, "columns", "offset"), kind)
        pointers |= {"weight": "*fp32", "bias": "*fp32"}
        if "HAS_PLACE" in variant.flags:
            pointers |= {"ids": "*i64", "positions": "*i64"}
        if "EIGHT" in variant.flags:
            pointers |= {"kept": "*u8", "factors": "*fp32"}
        return add_norm_kernel, constants, pointers, 4, 3
    pointers = {"logits": "*fp32", "logprobs": "*fp32", "tokens": "*i64"}
    pointers |= dict.fromkeys(("initial_limit", "latest", "count"), "*i64")
    pointers |= dict.fromkeys(("enabled", "last", "before_last"), "*u8")
    return choose_token_kernel, {"BLOCK": BLOCK}, pointers, 8, 3


def _resources(cubin: bytes) -> tuple[int, int]:
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


def jobs(every: bool = True) -> list[tuple[int, Variant]]:
    """What to compile, for each capability: all variants of all configurations that fit it. Not
    `every`: every fourth of each way of launching, from its first on.
    """
    found = [
        (capability, variant)
        for c in configurations()
        for capability, limit in SHARED.items()
        if c.fits(capability, limit)
        for variant in variants(c, capability)
    ]
    found += [(capability, v) for v in other_variants() for capability in SHARED]
    if every:
        return found
    ways: dict[tuple[str, str, tuple[str, ...]], list[tuple[int, Variant]]] = {}
    for job in found:
        ways.setdefault((job[1].kernel, job[1].dtype, job[1].flags), []).append(job)
    return [job for alike in ways.values() for job in alike[::4]]


def _line(job: tuple[int, Variant]) -> str:
    capability, variant = job
    made = compile_for(capability, variant)
    return json.dumps({"capability": capability, **asdict(variant), **asdict(made)})


def main() -> None:
    with Pool() as pool:
        for line in pool.imap(_line, jobs(every="--some" not in sys.argv)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
