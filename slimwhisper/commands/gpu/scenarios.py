"""What `slimwhisper report --device` assumes of the kernels: their efficiencies and their number.

No value here was timed. They come from a desk check of the CUDA path: of compiled kernels
(instructions of a loop, registers, shared memory), of what comparable kernels are known to reach,
and of counts of launches. docs/gpu.md says which figures of that check they reproduce.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# The shortest run of any kernel, its launch not counted: read, compute, write, drain.
SHORTEST = 1.4e-6


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How near a kind of kernel comes to the device's rates."""

    copy: float  # share of the rate of a copy
    matmul: float  # share of the rate of large products
    shortest: float = SHORTEST  # seconds, at least, whatever it moves


# cuBLAS. In a step, with 1 to 256 rows, reading the weights is the work: 0.6 of a copy's rate, and
# 5.5 us at least, as 20 to 80 blocks along the depth follow one another. Large ones: 0.72 of the
# best products, which are larger, and whole waves of tiles.
PRODUCT = Efficiency(0.6, 0.72, 5.5e-6)
# Our latent attention: between 2.0 and 2.9 TB/s are expected on an H200; published kernels of this
# kind in Triton reach 1.1 to 1.2, the best in CUDA 1.7 to 3.0.
LATENT = Efficiency(0.6, 0.4)
# Our attention to the baseline's keys and values: no data is used twice, so it streams better.
HEADS = Efficiency(0.65, 0.4)
# PyTorch's flash-attention of whole windows, d_k = 64: 300 to 350 TFLOP/s of Hopper's 790.
FLASH = Efficiency(0.8, 0.4)
# Elementwise kernels, norms, and combining parts.
PASS = Efficiency(0.8, 1.0)

TILE = 128  # rows and columns of a tile of a large product

# A float8 latent is bound by instructions: cycles of a processor for 16 positions of 1,280
# columns and one block of query rows. The desk check: bytes are loaded one by one, with 1,542
# instructions for 16 rows and an estimate of 285 us for 64 windows of large-v3 (two blocks each).
# Pairs of bytes: 914 instructions for 32 rows, at the same rate.
BYTEWISE_CYCLES = 285e-6 * 132 * 1.98e9 / (64 * 1500 / 16 * 2)
PAIRED_CYCLES = BYTEWISE_CYCLES * 914 / 1542
# The same for a latent in half precision, which only beams make as slow: the desk check's estimate
# of 340 us for five beams, 100 rows of queries in four blocks.
LATENT_CYCLES = 340e-6 * 132 * 1.98e9 / (64 * 1500 / 16 * 4)

# An activation that stays channel-major through the encoder: 25 to 40 % of its time expected.
CHANNEL_MAJOR = 1 / (1 - 0.325)

# On the engine's thread, with the GPU idle, measured on a CPU for a window: spectrograms of
# recordings over two minutes, and the session's own work.
MEL_SECONDS, SESSION_SECONDS = 7.6e-3, 0.32e-3

# Kernels of one decoder layer in a step, after the desk check's findings. A kernel that combines
# the parts of a split attention is not counted (`Scenario.combines`).
# tests/engine/test_on_a_gpu.py counts them in the code.
LAUNCHES = {"slim": 16, "slim fp8": 16, "baseline": 16}
LAUNCHES_BESIDE = 30  # of a step, besides its layers


@dataclass(frozen=True, slots=True)
class Scenario:
    """One state of the code, or the limit that the device sets to any code."""

    launches: Mapping[str, int]  # of a layer in a step, by form; as `LAUNCHES`
    beside: int  # as `LAUNCHES_BESIDE`
    combines: bool  # parts of a latent attention are combined by a kernel of its own
    fused: bool  # sum and norm are one kernel; before, cast, norm, cast and the sum
    rows8: int  # query rows of a program over a float8 latent
    cycles8: float  # as `BYTEWISE_CYCLES`
    together: int  # windows that are encoded, or prompted, together
    encoder: float  # factor on the encoder's time
    host: float  # seconds for a window with the GPU idle
    limit: bool = False  # weights and caches are read once at the rate of a copy; all else is free


SCENARIOS = {
    "limit": Scenario(LAUNCHES, LAUNCHES_BESIDE, False, True, 32, 0.0, 8, 1.0, 0.0, limit=True),
    "desk check": Scenario(
        launches={"slim": 28, "slim fp8": 38, "baseline": 25},
        beside=41,
        combines=True,
        fused=False,
        rows8=16,
        cycles8=BYTEWISE_CYCLES,
        together=4,
        encoder=CHANNEL_MAJOR,
        host=MEL_SECONDS + SESSION_SECONDS,
    ),
    "present": Scenario(
        launches=LAUNCHES,
        beside=LAUNCHES_BESIDE,
        combines=False,
        fused=True,
        rows8=32,
        cycles8=PAIRED_CYCLES,
        together=8,
        encoder=1.0,
        host=SESSION_SECONDS,
    ),
}
