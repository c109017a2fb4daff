"""Compiles every kernel as it is launched, for GPUs that this machine need not have.

    python -m slimwhisper.kernels.compilation [KERNEL DTYPE WIDTH]

prints a line of JSON for each variant, or for one of a kernel: registers, bytes of stack and of
shared memory.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slimwhisper.kernels.choose_token import BLOCK, choose_token_kernel
from slimwhisper.kernels.combine import ROWS, combine_kernel, combine_mapped_kernel
from slimwhisper.kernels.configurations import Configuration, configurations
from slimwhisper.kernels.heads_triton import split_heads_kernel
from slimwhisper.kernels.latent8_triton import CONVERTS, split_latent8_kernel
from slimwhisper.kernels.latent_triton import split_latent_kernel
from slimwhisper.kernels.norm_triton import add_norm_kernel

KERNELS = {
    "latent": split_latent_kernel,
    "latent8": split_latent8_kernel,
    "heads": split_heads_kernel,
}
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# capability: bytes of shared memory a block may have
SHARED = {80: 166_912, 89: 101_376, 90: 232_448}
STRIDED = ("query_", "latent_", "out_", "kept_", "source_")
WIDEST, HEAD, MOST_SPLITS = 1280, 64, 16  # d and d_k of the largest model


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled kernel uses."""

    registers: int  # per thread
    stack: int  # bytes per thread: what was spilled
    shared: int  # bytes per block


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a kernel is launched, apart from numbers known at run time only.

    Of the attention kernels, slots, lengths and the number of splits are such numbers, so that one
    variant serves cross-attention (with slots in a prompt, without in a step), self-attention (with
    lengths, without where all rows are full), one split and several. What is left:

        sources   self-attention of beams, in `latent` and `heads`; no form reads float8 so
        dtype     a row of the table for float16 also serves bfloat16; `latent8` is float16 always

    Of the others: `combine` and `combine_mapped` for the widest model and the most splits;
    `add_norm` after a block or first, of which self-attention's keeps the row, also in float8;
    `choose_token` with the rules of timestamps and without.
    """

    kernel: str
    dtype: str
    configuration: Configuration | None = None
    flags: tuple[str, ...] = ()  # which of the kernel's flags are set


def variants(configuration: Configuration) -> list[Variant]:
    """In which ways a configuration is launched."""
    c = configuration
    dtypes = (c.dtype,) if c.kernel == "latent8" or c.dtype == "float32" else ("float16", "bfloat16")
    flags: list[tuple[str, ...]] = [()] if c.kernel == "latent8" else [(), ("HAS_SOURCES",)]
    return [Variant(c.kernel, dtype, c, each) for dtype, each in product(dtypes, flags)]


def other_variants() -> Iterator[Variant]:
    """Those of kernels with a single configuration."""
    places: tuple[tuple[str, ...], ...] = ((), ("HAS_PLACE",), ("HAS_PLACE", "EIGHT"))
    for dtype in TYPES:
        yield Variant("combine", dtype)
        yield Variant("combine_mapped", dtype)
        for addend, place in product(((), ("HAS_ADDEND",)), places):
            yield Variant("add_norm", dtype, None, (*addend, *place))
    yield Variant("choose_token", "float32")
    yield Variant("choose_token", "float32", None, ("RULES",))


def compile_for(capability: int, variant: Variant) -> Compiled:
    """Compile for a compute capability such as 90, with rows aligned to 16 bytes as in torch.

    Raises what Triton raises if it cannot.
    """
    kind, c = TYPES[variant.dtype], variant.configuration
    kernel, constants, pointers, warps = _launch(variant, kind)
    if c is not None:
        constants |= {
            "D": c.width,
            "PIECE": c.piece,
            "SLICES": c.slices,
            "BLOCK_Q": c.block_q,
            "BLOCK_T": c.block_t,
            "STAGES": c.stages,
            "CONVERT": capability >= CONVERTS,
            "PRECISION": c.precision,
        }
    names = kernel.arg_names
    flags = [name for name in names if name.startswith("HAS_") or name in ("EIGHT", "RULES")]
    constants |= {name: name in variant.flags for name in flags}
    constants = {name: value for name, value in constants.items() if name in names}
    scalars = {"scale_log2": "fp32", "epsilon": "fp32", "has_slots": "u1", "has_lengths": "u1"}
    signature = dict.fromkeys(names, "i32") | scalars | pointers | dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, type_) in enumerate(signature.items())
        if type_.startswith("*") or (type_ == "i32" and name.startswith(STRIDED))
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": c.stages if c is not None else 3},
    )
    registers, stack = _resources(compiled.asm["cubin"])
    return Compiled(registers, stack, compiled.metadata.shared)


def _launch(variant: Variant, kind: str) -> tuple[Any, dict[str, Any], dict[str, str], int]:
    """The kernel, its constants but for a configuration's, its pointers' types and its warps."""
    c, flags = variant.configuration, variant.flags
    parts = dict.fromkeys(("sums", "stats", "factors"), "*fp32")
    typed = dict.fromkeys(("queries", "latent", "keys", "values", "maps", "out"), f"*{kind}")
    chosen = dict.fromkeys(("slots", "sources", "lengths"), "*i64")
    constants: dict[str, Any] = {}
    if c is not None:
        kernel, pointers = KERNELS[c.kernel], parts | typed | chosen
        if c.kernel == "latent8":
            pointers["latent"] = "*u16"
        return kernel, constants, {n: t for n, t in pointers.items() if n in kernel.arg_names}, c.warps
    if variant.kernel == "combine":
        constants = {"D": WIDEST, "BLOCK_D": 2048, "MOST": MOST_SPLITS}
        return combine_kernel, constants, {**parts, "out": f"*{kind}"}, 4
    if variant.kernel == "combine_mapped":
        constants = {"D": WIDEST, "WIDTH": HEAD, "BLOCK_N": ROWS, "BLOCK_D": 128}
        constants |= {"MOST": MOST_SPLITS, "PRECISION": "ieee" if kind == "fp32" else "tf32"}
        return combine_mapped_kernel, constants, {**parts, "maps": f"*{kind}", "out": f"*{kind}"}, 4
    if variant.kernel == "add_norm":
        typed = dict.fromkeys(("x", "addend", "total", "normed", "kept", "factors"), f"*{kind}")
        typed |= dict.fromkeys(("columns", "offset"), f"*{kind}")
        # where nothing is kept, the arguments for it are x
        chosen = dict.fromkeys(("ids", "positions"), "*i64" if "HAS_PLACE" in flags else f"*{kind}")
        eight = {"kept": "*u8", "factors": "*fp32"} if "EIGHT" in flags else {}
        pointers = typed | chosen | eight | {"weight": "*fp32", "bias": "*fp32"}
        return add_norm_kernel, {"D": WIDEST, "BLOCK_D": 2048}, pointers, 4
    pointers = {"logits": "*fp32", "logprobs": "*fp32", "tokens": "*i64"}
    pointers |= dict.fromkeys(("initial_limit", "latest", "count"), "*i64")
    pointers |= dict.fromkeys(("enabled", "last", "before_last"), "*u8")
    return choose_token_kernel, {"BLOCK": BLOCK}, pointers, 8


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


def jobs() -> Iterator[tuple[int, Variant]]:
    """All variants, each with the capabilities on which it is launched."""
    for capability, limit in SHARED.items():
        for c in configurations():
            if c.shared <= limit and c.capability <= capability:
                yield from ((capability, variant) for variant in variants(c))
        yield from ((capability, variant) for variant in other_variants())


def _line(job: tuple[int, Variant]) -> str:
    capability, variant = job
    made = compile_for(capability, variant)
    return json.dumps({"capability": capability, **asdict(variant), **asdict(made)})


def main() -> None:
    asked = sys.argv[1:]
    todo = list(jobs())
    if asked:
        kernel, dtype, width = asked
        todo = [
            (capability, variant)
            for capability, variant in todo
            if (c := variant.configuration) is not None
            and (variant.kernel, variant.dtype, str(c.width)) == (kernel, dtype, width)
        ]
        print(_line(todo[-1]))
        return
    with Pool() as pool:
        for line in pool.imap(_line, todo):
            print(line, flush=True)


if __name__ == "__main__":
    main()
