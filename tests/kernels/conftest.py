"""What the tests of the functions in C share."""

import pytest
import torch

from slimwhisper.kernels.cpu.library import NATIVE, Library, library


def variant(name: str) -> Library:
    """Of float32, "wide" with AVX-512 where the processor has it; or "bfloat16"."""
    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    if library(dtype) is None:
        pytest.skip("kernels/cpu is not compiled here, or there is no AVX512-BF16")
    return Library(NATIVE, name != "narrow", dtype)


@pytest.fixture(params=["wide", "narrow"], scope="session")
def c(request: pytest.FixtureRequest) -> Library:
    """Of float32."""
    return variant(request.param)


@pytest.fixture(params=["wide", "narrow", "bfloat16"], scope="session")
def any_c(request: pytest.FixtureRequest) -> Library:
    """Of each dtype."""
    return variant(request.param)
