"""The GPUs that `slimwhisper report --device` knows: what their data sheets say.

To add one, add a row to `DEVICES`. Rates are for dense float16 products summed in float32, and in
the units of the data sheets' own products: bytes and operations in a second, a multiply-add being
two operations.
"""

from dataclasses import dataclass

# What an H200 reaches of its data sheet, measured outside this project: a device copy of 4.3 of
# 4.8 TB/s, and large bfloat16 products of 790 of 989 TFLOP/s. Assumed for the others too.
COPY_SHARE = 4.3 / 4.8
MATMUL_SHARE = 790 / 989
# From the end of one kernel of a CUDA graph to the start of the next that needs its result.
# Assumed: about a microsecond on all of these.
LAUNCH = 1.0e-6


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    gpu: str  # its full name
    bandwidth: float  # of memory, bytes a second
    tensor: float  # operations a second
    processors: int  # streaming multiprocessors
    clock: float  # boost, cycles a second
    launch: float = LAUNCH  # seconds

    @property
    def copy(self) -> float:
        """Bytes a second that a copy moves, reads and writes counted."""
        return COPY_SHARE * self.bandwidth

    @property
    def matmul(self) -> float:
        """Operations a second of a large product."""
        return MATMUL_SHARE * self.tensor


DEVICES = {
    "h200": Device("NVIDIA H200", 4.8e12, 989e12, 132, 1.98e9),
    "h100": Device("NVIDIA H100 SXM", 3.35e12, 989e12, 132, 1.98e9),
    "a100": Device("NVIDIA A100 SXM 80 GB", 2.039e12, 312e12, 108, 1.41e9),
    "l4": Device("NVIDIA L4", 0.3e12, 121e12, 58, 2.04e9),
    "4090": Device("NVIDIA GeForce RTX 4090", 1.008e12, 165e12, 128, 2.52e9),
}
