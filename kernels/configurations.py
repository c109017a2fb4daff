"""The configurations of the Triton kernels: read from configurations.json, not tuned at run time.

`bench/tune.py` writes that file, best first for each kernel, dtype, width and number of queries; a
device uses the first that fits its shared memory.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("configurations.json")
# of one window: of large, 48 partial sums for 20 heads are as many bytes as E, 1,500 positions
MAX_SPLITS = 48


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of one kernel."""

    kernel: str  # "latent", "latent8" for a float8 latent, or "heads"
    dtype: str  # "float16", also used for bfloat16, or "float32"
    width: int  # d, or d_k
    block_d: int  # columns per load
    slices: int  # of these columns, one per warp; 1: plain products
    block_q: int  # queries per program; at least 16, the size of the matrix units
    block_t: int  # positions per tile
    stages: int  # tiles in flight
    warps: int
    shared: int  # bytes of shared memory, as compiled
    registers: int  # per thread, as compiled
    capability: int = 80  # the lowest compute capability it compiles well for

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
class TritonDevice:
    """The limits of a GPU that the choice of a configuration depends on."""

    shared: int  # bytes of shared memory that a block may have
    multiprocessors: int
    capability: int  # compute capability, such as 90
    registers: int = 65_536  # of a multiprocessor
    warps: int = 64  # that a multiprocessor holds

    def programs(self, c: Configuration) -> int:
        """How many programs a multiprocessor holds at a time, at least 1."""
        by_registers = self.registers // max(32 * c.warps * c.registers, 1)
        by_shared = self.shared // max(c.shared, 1)
        return max(min(by_registers, by_shared, self.warps // c.warps), 1)


@cache
def find_configuration(
    kernel: str, dtype: str, width: int, queries: int, device: TritonDevice
) -> Configuration | None:
    """The best configuration for `queries` queries per window; None if the table has none."""
    if dtype == "bfloat16":  # the same size and instructions
        dtype = "float16"
    fitting = [
        c
        for c in configurations()
        if (c.kernel, c.dtype, c.width) == (kernel, dtype, width)
        and c.fits(device.capability, device.shared)
    ]
    if not fitting:
        return None
    one_block = [c for c in fitting if c.block_q >= queries]
    # several blocks: as few as possible
    block_q = (min if one_block else max)(c.block_q for c in one_block or fitting)
    return next(c for c in fitting if c.block_q == block_q)


def choose_splits(programs: int, tiles: int, concurrent: int, part: float = 0) -> int:
    """How many parts to split `tiles` tiles of positions into.

    The fewest at the least cost, waves x (tiles of a part + 1 to start + `part`): no multiprocessor
    is idle, and no more partial sums are written than that is worth.

    Args:
        programs: without splitting.
        concurrent: how many programs run at a time.
        part: what a program's partial sum costs to write and read, in tiles.
    """

    def cost(splits: int) -> float:
        waves = -(-programs * splits // concurrent)
        return waves * (-(-tiles // splits) + 1 + part)

    return min(range(1, max(min(tiles, MAX_SPLITS), 1) + 1), key=cost)
