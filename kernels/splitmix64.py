"""SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): random numbers that depend on a key and a count
alone, on every device, whichever rows are computed beside them.
"""

import torch
from torch import Tensor

GAMMA = -0x61C8864680B583EB  # the golden ratio, as int64
STEPS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))


def uniform(keys: Tensor, counts: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Numbers in (0, 1), never 0 or 1, of `bits` bits: number `counts` (the first is 1) of the
    generators seeded with `keys`.

    keys, counts: int64 that broadcast -> their shape, in `dtype`, which must hold `bits` + 1 bits.
    """
    z = keys + counts * GAMMA
    for shift, factor in STEPS:
        z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * factor  # >> keeps the sign; & drops it
    return ((z >> 64 - bits & (1 << bits) - 1).to(dtype) + 0.5) * 2.0**-bits
