"""The configurations of the Triton kernels: read from configurations.json, not tuned at run time;
and the limits of the device that they run on.

`bench/tune.py` writes that file, best first for each kernel, dtype, width and number of queries; a
device uses the first that fits its shared memory.
"""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

TABLE = Path(__file__).with_name("configurations.json")
# of one window: of large, 48 partial sums for 20 heads are as many bytes as E, 1,500 positions
MAX_SPLITS = 48
MIN_CAPABILITY = (8, 0)  # tensor cores for bfloat16, asynchronous copies


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of one kernel."""

    kernel: str  # "latent" or "heads"
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
    return tuple(Configuration(**row) for row in json.loads(TABLE.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class TritonDevice:
    """The limits of a GPU that the choice of a configuration depends on."""

    shared: int  # bytes of shared memory that a block may have
    multiprocessors: int
    capability: int  # compute capability, such as 90

    def programs(self, c: Configuration) -> int:
        """How many programs a multiprocessor holds at a time, at least 1: it has 65,536 registers,
        and the shared memory of a block. Its 48 or 64 warps are more than these leave room for.
        """
        by_registers = 65_536 // max(32 * c.warps * c.registers, 1)
        return max(min(by_registers, self.shared // max(c.shared, 1)), 1)


@cache
def find_configuration(
    kernel: str, dtype: str, width: int, queries: int, device: TritonDevice
) -> Configuration | None:
    """The best configuration for `queries` queries per window; None if the table has none."""
    if dtype == "bfloat16":  # the same size and instructions
        dtype = "float16"
    known = [c for c in configurations() if (c.kernel, c.dtype, c.width) == (kernel, dtype, width)]
    fitting = [c for c in known if c.fits(device.capability, device.shared)]
    one_block = [c for c in fitting if c.block_q >= queries]
    # several blocks: as few as possible; of the same size, the first
    best = min if one_block else max
    return best(one_block or fitting, key=lambda c: c.block_q, default=None)


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


def find_triton_device(device: torch.device, dtype: torch.dtype) -> tuple[TritonDevice | None, str]:
    """The limits of the device that Triton runs on, or None if it is not used; and why."""
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return None, "the device is a CPU, and TRITON_INTERPRET is not 1"
        if dtype == torch.bfloat16:
            return None, "Triton's interpreter computes bfloat16 wrongly"
        limits = TritonDevice(shared=232_448, multiprocessors=4, capability=90)
        return limits, "interpreted on the CPU"
    if device.type != "cuda":
        return None, f"Triton is not used on {device.type}"
    # a ROCm device has numbers of another kind: its kernels are those without NVIDIA's instructions
    capability = MIN_CAPABILITY if torch.version.hip else torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return None, f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    try:
        import triton  # absent on some platforms
    except ImportError as error:
        return None, f"triton does not load ({error})"
    properties: Any = torch.cuda.get_device_properties(device)
    # absent on ROCm, where a block has no more than the default
    default = getattr(properties, "shared_memory_per_block", 0)
    shared: int = getattr(properties, "shared_memory_per_block_optin", default)
    major, minor = capability
    limits = TritonDevice(shared, properties.multi_processor_count, 10 * major + minor)
    return limits, f"triton {triton.__version__} on {properties.name}"
