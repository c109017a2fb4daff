"""What the tests of the functions in C share: inputs, and how near the results must be."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import strategies as st
from torch import Tensor

THREADS = st.sampled_from([1, 3])
ROWS = st.integers(1, 9) | st.sampled_from([13, 64, 66])


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """In numbers that float16 has."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.half().to(dtype)


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """PyTorch's threads, and so C's."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_near(
    found: Tensor | None, exact: Tensor, plain: Tensor | None = None, off: float = 1e-4
) -> None:
    """In float32 as near as its sums are; in bfloat16 with one rounding, or, where operands are
    rounded on the way, with at most twice the error of `plain`, PyTorch's in bfloat16."""
    assert found is not None and found.shape == exact.shape
    if found.dtype == torch.float32:
        torch.testing.assert_close(found.double(), exact, atol=off, rtol=1e-5)
    elif plain is None:
        torch.testing.assert_close(found.double(), exact, atol=off, rtol=2**-8)
    else:
        ours, theirs = ((t.double() - exact).pow(2).mean() for t in (found, plain))
        assert ours <= 4 * theirs
