"""Compiles the table's configurations, for GPUs that this machine need not have.

    python -m slimwhisper.kernels.compilation [KERNEL DTYPE WIDTH]

prints a line of JSON for each configuration, or the first one of a kernel, and each capability
whose shared memory holds it: registers, bytes of stack and of shared memory. The kernel with
swapped operands has no configurations: with KERNEL alone, latent_swapped, all its variants.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from slimwhisper.kernels.choose_token import BLOCK, choose_token_kernel
from slimwhisper.kernels.combine import combine_kernel
from slimwhisper.kernels.configurations import Configuration, configurations
from slimwhisper.kernels.heads_triton import split_heads_kernel
from slimwhisper.kernels.latent_gluon import FEW, LAYOUT, PIECE, REST, TILE, swapped_latent_kernel
from slimwhisper.kernels.latent_swapped import SHAPES
from slimwhisper.kernels.latent_triton import split_latent_kernel

KERNELS = {
    "latent": split_latent_kernel,
    "latent8": split_latent_kernel,
    "heads": split_heads_kernel,
}
FIXED = ("combine", "choose_token")
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
SHARED = {80: 166_912, 90: 232_448}  # capability: bytes of shared memory a block may have
STRIDED = ("query_", "latent_", "out_", "kept_")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled kernel uses."""

    registers: int  # per thread
    stack: int  # bytes per thread: what was spilled
    shared: int  # bytes per block


def compile_for(configuration: Configuration, capability: int, sources: bool = False) -> Compiled:
    """Compile for a compute capability such as 90, with rows aligned to 16 bytes as in torch.

    sources: the variant in which rows read each other's tokens. Raises what Triton raises if it
    cannot.
    """
    return _used(build(configuration, capability, sources))


def build(configuration: Configuration, capability: int, sources: bool = False) -> Any:
    """What Triton makes of it: `.asm["cubin"]` is the machine code."""
    c = configuration
    kernel = KERNELS[c.kernel]
    constants: dict[str, Any] = {
        "D": c.width,
        "PIECE": c.piece,
        "SLICES": c.slices,
        "BLOCK_Q": c.block_q,
        "BLOCK_T": c.block_t,
        "SPLITS": 2,
        "STAGES": c.stages,
        "HAS_SLOTS": True,
        "HAS_SOURCES": sources,
        "HAS_LENGTHS": True,
        "EIGHT": c.kernel == "latent8",
        "PRECISION": c.precision,
    }
    signature = {name: _type_of(name, constants, TYPES[c.dtype]) for name in kernel.arg_names}
    if c.kernel == "latent8":
        signature["latent"] = f"tensordesc<u8[1, {c.block_t}, {c.piece}]>"
    return _build(kernel, signature, constants, capability, c.warps, c.stages)


def build_swapped(width: int, dtype: str, splits: int = 2, chosen: bool = True) -> Any:
    """The kernel with swapped operands, for 9.0; chosen: with slots and lengths."""
    heads, ring = SHAPES[width]
    constants: dict[str, Any] = {
        "HEADS": heads,
        "D": width,
        "SLOTS": ring,
        "SPLITS": splits,
        "HAS_SLOTS": chosen,
        "HAS_LENGTHS": chosen,
    }
    kind = TYPES[dtype]
    names = swapped_latent_kernel.arg_names
    signature = {name: _type_of(name, constants, kind) for name in names}
    for name, rows in (("queries", FEW), ("rest", REST), ("latent", TILE)):
        signature[name] = f"tensordesc<{kind}[1,{rows.value},{PIECE.value}],{LAYOUT!r}>"
    return _build(swapped_latent_kernel, signature, constants, 90, 4, 1)


def compile_fixed(name: str, capability: int) -> Compiled:
    """Compile a kernel with a single configuration: "combine" or "choose_token"."""
    constants: dict[str, Any]
    if name == "combine":
        constants = {"D": 1280, "BLOCK_D": 2048, "SPLITS": 16}
        signature = {n: _type_of(n, constants, "fp16") for n in combine_kernel.arg_names}
        return _used(_build(combine_kernel, signature, constants, capability, 4, 1))
    constants = {"RULES": True, "BLOCK": BLOCK}
    pointers = {"logits": "*fp32", "logprobs": "*fp32", "tokens": "*i64"}
    pointers |= dict.fromkeys(("initial_limit", "latest", "count"), "*i64")
    pointers |= dict.fromkeys(("enabled", "last", "before_last"), "*u8")
    names = choose_token_kernel.arg_names
    signature = {n: pointers.get(n) or _type_of(n, constants, "fp32") for n in names}
    return _used(_build(choose_token_kernel, signature, constants, capability, 8, 1))


def _build(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    capability: int,
    warps: int,
    stages: int,
) -> Any:
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and name.startswith(STRIDED))
    }
    used = {name: value for name, value in constants.items() if name in signature}
    source = GluonASTSource if kernel.is_gluon() else ASTSource
    return triton.compile(
        source(kernel, signature, used, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )


def _used(compiled: Any) -> Compiled:
    registers, stack = _resources(compiled.asm["cubin"])
    return Compiled(registers, stack, compiled.metadata.shared)


def _type_of(name: str, constants: dict[str, Any], kind: str) -> str:
    if name in constants:
        return "constexpr"
    if name in ("sums", "stats", "factors"):
        return "*fp32"
    if name in ("slots", "sources", "lengths"):
        return "*i64"
    if name == "scale_log2":
        return "fp32"
    return f"*{kind}" if name in ("queries", "latent", "keys", "values", "out") else "i32"


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


def variants(configuration: Configuration) -> tuple[bool, ...]:
    """Without and with `sources`; a float8 latent has no `sources`."""
    return (False,) if configuration.kernel == "latent8" else (False, True)


def _fitting(asked: Sequence[str]) -> Iterator[tuple[Configuration, int, bool]]:
    for c in configurations():
        if not asked or [c.kernel, c.dtype, str(c.width)] == list(asked):
            for capability, limit in SHARED.items():
                if c.shared <= limit and c.capability <= capability:
                    for sources in variants(c):
                        yield c, capability, sources


def _line(job: tuple[Configuration | str, int, bool]) -> str:
    what, capability, sources = job
    if isinstance(what, str):
        made, name = compile_fixed(what, capability), {"kernel": what}
    else:
        made, name = compile_for(what, capability, sources), asdict(what)
    return json.dumps({"configuration": name, "capability": capability, **asdict(made)})


def _swapped_lines() -> Iterator[str]:
    for width, dtype, splits, chosen in product(SHAPES, ("float16", "bfloat16"), (1, 2), (0, 1)):
        made = _used(build_swapped(width, dtype, splits, bool(chosen)))
        name = {"kernel": "latent_swapped", "width": width, "dtype": dtype, "splits": splits}
        yield json.dumps({"configuration": name, "capability": 90, **asdict(made)})


def main() -> None:
    asked = sys.argv[1:]
    if asked == ["latent_swapped"]:
        for line in _swapped_lines():
            print(line, flush=True)
        return
    jobs: list[tuple[Configuration | str, int, bool]] = list(_fitting(asked))
    if asked:
        print(_line(jobs[-1]))
        return
    jobs += [(name, capability, False) for name in FIXED for capability in SHARED]
    with Pool() as pool:
        for line in pool.imap(_line, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
