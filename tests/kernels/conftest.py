"""What the tests of the functions in C share."""

from collections.abc import Iterator

import pytest
import torch

from slimwhisper.kernels.cpu.library import NATIVE, Library, library


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of PyTorch, and so of C."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["wide", "narrow"])
def c(request: pytest.FixtureRequest) -> Library:
    """Of float32, with AVX-512, where the processor has it, and without."""
    if library() is None:
        pytest.skip("kernels/cpu is not compiled here")
    return Library(NATIVE, wide=request.param == "wide")
