"""Half of a GPU's multiprocessors for a stream."""

import pytest
import torch

from slimwhisper.kernels.gpu import driver

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(("capability", "bindings"), [((8, 9), True), ((9, 0), False)])
def test_hopper_alone_is_divided(
    capability: tuple[int, int], bindings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(driver, "has_bindings", lambda: bindings)
    assert not driver.can_divide(GPU)


@pytest.mark.gpu
def test_a_stream_on_half_of_the_multiprocessors() -> None:
    if not (torch.cuda.is_available() and driver.can_divide(GPU)):
        pytest.skip("no GPU whose multiprocessors can be divided")
    stream = driver.partition_stream(GPU)
    x = torch.randn(4096, 4096, device=GPU)
    whole = x @ x
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        half = x @ x
    torch.cuda.synchronize()
    torch.testing.assert_close(half, whole, rtol=1e-4, atol=1e-2)
