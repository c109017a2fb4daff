"""Half of a GPU's multiprocessors for a stream: what CUDA's driver is asked for."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slimwhisper.kernels.gpu import driver

GPU = torch.device("cuda", 0)


class FakeDriver:
    """`cuda.bindings.driver` of a GPU with so many multiprocessors; none: it is too old."""

    def __init__(self, multiprocessors: int | None) -> None:
        self.multiprocessors, self.asked = multiprocessors, list[int]()
        kinds = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
        self.CUdevResourceType, self.CUstream_flags = (
            kinds,
            SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        )
        self.CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)

    def answer(self, *results: Any) -> tuple[Any, ...]:
        failed = self.multiprocessors is None
        return SimpleNamespace(value=int(failed), name="CUDA_ERROR_NOT_SUPPORTED"), *results

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return SimpleNamespace(value=0, name="CUDA_SUCCESS"), index

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[Any, ...]:
        return self.answer(SimpleNamespace(sm=SimpleNamespace(smCount=self.multiprocessors)))

    def cuDevSmResourceSplitByCount(self, groups: int, _: Any, flags: int, least: int) -> Any:
        self.asked.append(least)
        return self.answer(["half", "never"], groups, "the rest")

    def cuDevResourceGenerateDesc(self, resources: list[str], count: int) -> tuple[Any, ...]:
        assert resources == ["half"] and count == 1
        return self.answer("description")

    def cuGreenCtxCreate(self, description: str, device: int, flags: int) -> tuple[Any, ...]:
        return self.answer(f"context of {device}")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    driver._green_context.cache_clear()
    yield
    driver._green_context.cache_clear()


@pytest.mark.parametrize(
    ("multiprocessors", "half"), [(132, 64), (114, 56), (78, 32), (14, None), (None, None)]
)
@pytest.mark.parametrize("capability", [(9, 0), (8, 9)])
def test_hopper_is_divided(
    multiprocessors: int | None,
    half: int | None,
    capability: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver(multiprocessors)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=fake))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(driver, "has_bindings", lambda: True)
    divides = capability == (9, 0) and half is not None
    assert driver.can_divide(GPU) == divides
    assert fake.asked == ([half] if divides else [])
    monkeypatch.setattr(driver, "has_bindings", lambda: False)
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
