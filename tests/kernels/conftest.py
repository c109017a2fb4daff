"""What the tests of the functions in C share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of PyTorch, and so of C."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
