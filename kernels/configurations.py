"""The configurations of the Triton kernels: read from configurations.json, not tuned at run time.

`bench/tune.py` writes that file, best first for each kernel, dtype, width and number of queries; a
device uses the first that fits its shared memory.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("configurations.json")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of one kernel."""

    kernel: str  # "latent", "latent8" for a float8 latent, or "heads"
    dtype: str  # "float16", also used for bfloat16, or "float32"
    width: int  # d, or d_k
    piece: int  # columns per load
    slices: int  # of a piece, one per warp; 1: plain products
    block_q: int  # queries per program; at least 16, the size of the matrix units
    block_t: int  # positions per tile
    stages: int  # tiles in flight
    warps: int
    shared: int  # bytes of shared memory, as compiled
    registers: int  # per thread, as compiled
    capability: int = 80  # the least compute capability it compiles well for

    @property
    def precision(self) -> str:
        """How `tl.dot` treats float32."""
        return "ieee" if self.dtype == "float32" else "tf32"

    def fits(self, capability: int, shared: int) -> bool:
        """A GPU of this compute capability whose blocks may have `shared` bytes."""
        return self.shared <= shared and self.capability <= capability


@cache
def configurations() -> tuple[Configuration, ...]:
    """The whole table."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Configuration(**row) for row in rows)


@dataclass(frozen=True, slots=True)
class Processor:
    """What the choice of a configuration depends on."""

    shared: int  # bytes of shared memory that a block may have
    count: int  # streaming multiprocessors
    capability: int  # compute capability, such as 90
    registers: int = 65_536  # of a multiprocessor
    warps: int = 64  # that a multiprocessor holds

    def programs(self, c: Configuration) -> int:
        """How many programs a multiprocessor holds at a time, at least 1."""
        by_registers = self.registers // max(32 * c.warps * c.registers, 1)
        by_shared = self.shared // max(c.shared, 1)
        return max(min(by_registers, by_shared, self.warps // c.warps), 1)


@cache
def find(
    kernel: str, dtype: str, width: int, queries: int, processor: Processor
) -> Configuration | None:
    """The best configuration for `queries` queries per window; None if the table has none."""
    if dtype == "bfloat16":  # the same size and instructions
        dtype = "float16"
    fitting = [
        c
        for c in configurations()
        if (c.kernel, c.dtype, c.width) == (kernel, dtype, width)
        and c.fits(processor.capability, processor.shared)
    ]
    if not fitting:
        return None
    enough = [c for c in fitting if c.block_q >= queries]
    if not enough:  # several blocks: as few as possible
        most = max(c.block_q for c in fitting)
        return next(c for c in fitting if c.block_q == most)
    least = min(c.block_q for c in enough)
    return next(c for c in enough if c.block_q == least)


def choose_splits(programs: int, tiles: int, processors: int) -> int:
    """How many parts to split `tiles` tiles of positions into, so that all processors have work.

    The fewest that reach 85 % of the best use of the last wave. programs: without splitting.
    """

    def use(splits: int) -> float:
        waves = -(-programs * splits // processors)
        return programs * splits / (waves * processors)

    counts: Sequence[int] = range(1, max(min(tiles, 16), 1) + 1)
    best = max(map(use, counts))
    return next(s for s in counts if use(s) >= 0.85 * best)
