"""Latent attention on Hopper, in CUDA: `hopper_latent.cu`, compiled when it is first used.

Triton computes with heads as the rows of a matrix instruction and reads a wide latent several times
from shared memory. This kernel reads it from memory at nearly the rate of a copy:
docs/internals/gpu.md.
"""

import ctypes
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.kernels.attention import ALL, Latent, Reads
from slimwhisper.kernels.gpu.combine import PartialSums, combine_and_map, empty_by_head
from slimwhisper.kernels.gpu.driver import CAPABILITY, checked

TILE = 64  # positions that a block computes with at a time
COLUMNS = 64  # of a chunk of the latent in shared memory
TEAM = 128  # threads of each of three teams
SHARED = 232_448  # bytes of shared memory of a block
MAX_REGISTERS = 150  # of results in a thread: the sums, a tile's scores, and three of each query

POINTER, LONG, FLOAT, INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_float, ctypes.c_int
ARGUMENTS = (*[POINTER] * 9, *[LONG] * 8, FLOAT, *[INT] * 4)  # of the kernel
MAX_CLUSTER = 2  # blocks that merge their results; of more, `combine` does


@dataclass(frozen=True, slots=True)
class Variant:
    """What the kernel is compiled for."""

    width: int  # d
    queries: int  # of a window, padded to a multiple of 8
    page: int  # positions of a page; 0: without a block table
    bfloat16: bool
    float8: bool
    cluster: int = 0  # blocks of a window that merge their results; 0: each stores its part

    @property
    def chunks(self) -> int:
        """Chunks of a tile."""
        return self.width // COLUMNS

    @property
    def group(self) -> int:
        """Chunks of a slot of the ring, which are loaded and freed together."""
        return max(g for g in range(1, 6) if self.chunks // 2 % g == 0)

    @property
    def fixed(self) -> int:
        """Bytes of shared memory but the ring: queries, weights, and numbers of each query."""
        return (self.chunks + 2) * self.queries * COLUMNS * 2 + 6 * self.queries * 4

    @property
    def slot(self) -> int:
        """Bytes of a slot of the ring, with its two barriers."""
        return self.group * TILE * COLUMNS * 2 + 16

    @property
    def ring(self) -> int:
        """Slots of the ring."""
        return (SHARED - self.fixed) // self.slot

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.fixed + self.ring * self.slot

    @property
    def fits(self) -> bool:
        """Whether a whole tile fits in shared memory, and the results in registers."""
        if self.width % (2 * COLUMNS):
            return False
        results = (self.chunks // 2 + 1) * self.queries // 2 + 3 * self.queries // 4
        return results <= MAX_REGISTERS and self.ring * self.group >= self.chunks

    def source(self) -> str:
        """The CUDA code."""
        names = "width queries group ring page bfloat16 float8 cluster".split()
        numbers = {"TEAM": TEAM, "TILE": TILE, "COLUMNS": COLUMNS}
        numbers |= {name.upper(): int(getattr(self, name)) for name in names}
        defined = "".join(f"#define {name} {number}\n" for name, number in numbers.items())
        products = self._product("add_scores", 0) + self._product("add_sums", 1)
        path = Path(__file__).with_name("hopper_latent.cu")
        return defined + products + path.read_text(encoding="utf-8")

    def _product(self, name: str, transposed: int) -> str:
        """A function that adds the product of two matrices in shared memory, 64 x 16 and
        16 x `queries`, to a thread's results. transposed: whether the first one is.
        """
        dtype, count = "bf16" if self.bfloat16 else "f16", self.queries // 2
        names = ", ".join(f"%{i}" for i in range(count))
        results = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
        return (
            f"__device__ __forceinline__ void {name}"
            f"(float (&sums)[{count}], unsigned long long a, unsigned long long b) {{\n"
            f'asm volatile("wgmma.mma_async.sync.aligned.m64n{self.queries}k16.f32.{dtype}.{dtype} '
            f'{{{names}}}, %{count}, %{count + 1}, 1, 1, 1, {transposed}, 0;"\n'
            f': {results} : "l"(a), "l"(b) : "memory");\n}}\n'
        )


def variant_of(queries: Tensor, latent: Latent, reads: Reads) -> Variant | None:
    """The kernel for a call of `attend`, or None if there is none: position_bias, another dtype
    or width, or more queries than fit.
    """
    rows, heads, width = queries.shape
    windows = reads.windows(len(latent))
    float8, values = latent.factors is not None, latent.values
    halves = (torch.float16,) if float8 else (torch.float16, torch.bfloat16)
    if queries.dtype not in halves or not (float8 or values.dtype == queries.dtype):
        return None
    if reads.position_bias is not None:
        return None
    variant = Variant(
        width,
        -(-rows // windows * heads // 8) * 8,
        0 if reads.block_table is None else values.shape[1],
        queries.dtype == torch.bfloat16,
        float8,
    )
    return variant if variant.fits and _aligned(queries) and _aligned(values) else None


def _aligned(tensor: Tensor) -> bool:
    """Whether rows can be read 16 bytes at a time."""
    apart = [stride * tensor.itemsize for stride in tensor.stride()[:-1]]
    return tensor.stride(-1) == 1 and not any(n % 16 for n in (tensor.data_ptr(), *apart))


def attend(
    variant: Variant,
    queries: Tensor,
    latent: Latent,
    scale: float,
    splits: int,
    reads: Reads = ALL,
    maps: Tensor | None = None,
) -> Tensor:
    """Attend with every head's folded query to its window's latent, on the current device.

    Arguments:
        variant: from `variant_of`.
        queries: [N, h, d] float16 or bfloat16, for a float8 latent float16; the rows of one window
            are adjacent.
        latent: values [S, T, d] in the same dtype, or float8 with factors [S, T] float32.
        scale: factor on the scores.
        splits: parts of a window's positions, each by a block of its own.
        reads: which positions.
        maps: [h, d_k, d], every head's B_i^T, to be applied to the result.
    Returns:
        [N, h, d], laid out head by head, or with `maps` [N, h, d_k]; zeros for a window without
        positions. Raises RuntimeError if the kernel cannot be compiled or launched.
    """
    from cuda.bindings import driver

    rows, heads, width = queries.shape
    windows = reads.windows(len(latent))
    values, factors, table = latent.values, latent.factors, reads.block_table
    variant = replace(variant, cluster=splits if splits <= MAX_CLUSTER else 0)
    out, part = empty_by_head(queries), 0 if variant.cluster else rows * heads
    parts = PartialSums.allocate(part, splits, width, queries.device)
    buffers = (queries, values, factors, *reads.tensors(queries), parts.sums, parts.stats, out)
    numbers = (
        *queries.stride()[:2],
        *out.stride()[:2],
        *values.stride()[:2],
        0 if factors is None else factors.stride(0),
        0 if table is None else table.stride(0),
        scale * math.log2(math.e),
        heads,
        rows // windows,
        reads.positions(values.shape[1]),
        splits,
    )
    kernel = _load(variant, torch.cuda.current_device())
    pointers = (0 if buffer is None else buffer.data_ptr() for buffer in buffers)
    arguments = (*pointers, *numbers), ARGUMENTS
    stream = torch.cuda.current_stream().cuda_stream
    shape = (windows, splits, 1, 3 * TEAM, 1, 1, variant.shared)
    checked(driver.cuLaunchKernel(kernel, *shape, stream, arguments, 0))
    return combine_and_map(parts, out, maps)


@cache
def _load(variant: Variant, device: int) -> Any:
    """The kernel on a device, which is the current one."""
    from cuda.bindings import driver

    module = checked(driver.cuModuleLoadData(compile_for(variant)))
    kernel = checked(driver.cuModuleGetFunction(module, b"attend"))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuFuncSetAttribute(kernel, attribute, variant.shared))
    return kernel


@cache
def compile_for(variant: Variant) -> bytes:
    """The machine code, by NVRTC, which needs no GPU. Raises RuntimeError."""
    from cuda.bindings import nvrtc

    source = variant.source().encode()
    program = checked(nvrtc.nvrtcCreateProgram(source, b"hopper_latent.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture=sm_{CAPABILITY}a".encode(), b"--std=c++17"]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status.value:
            log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"{status.name}: {log.decode().strip()}")
        code = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)
