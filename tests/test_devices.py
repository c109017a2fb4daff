"""The batch on a GPU, from its free memory. No GPU is needed: only the counters are replaced."""

import pytest
import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.devices import CPU_BATCH, check_batch_size, choose_batch_size
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError
from slimwhisper.longform.engines import slot_bytes
from tests.support.windows import random_model

GPU = torch.device("cuda", 1)
GB = 1_000_000_000


class Memory:
    """A GPU's counters."""

    free, reserved, allocated = 20 * GB, 0, 0


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    def asked(found: object, device: torch.device) -> object:
        assert device == GPU
        return found

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda d: asked((Memory.free, 144 * GB), d))
    monkeypatch.setattr(cuda, "memory_reserved", lambda d: asked(Memory.reserved, d))
    monkeypatch.setattr(cuda, "memory_allocated", lambda d: asked(Memory.allocated, d))
    for name in ("free", "reserved", "allocated"):  # put back afterwards
        monkeypatch.setattr(Memory, name, getattr(Memory, name))
    return Memory


def test_half_of_the_free_memory_in_eights(memory: type[Memory]) -> None:
    """At least 8, at most 256; on a CPU always 16."""
    assert choose_batch_size(GPU, GB // 10) == 96  # 100 fit
    assert choose_batch_size(GPU, GB) == 8  # 10 fit
    memory.reserved, memory.allocated = 8 * GB, 4 * GB  # what torch does not use is free, too
    assert choose_batch_size(GPU, GB // 4) == 48
    assert choose_batch_size(GPU, GB // 4, reusable=8 * GB) == 64
    memory.free = 139 * GB
    assert choose_batch_size(GPU, 41_000_000) == 256
    memory.free, memory.reserved, memory.allocated = GB, 0, 0
    assert choose_batch_size(GPU, GB) == 8
    assert choose_batch_size(torch.device("cpu"), GB) == CPU_BATCH == 16
    with pytest.raises(OptionError, match="batch_size"):
        check_batch_size(0)


def test_a_model_keeps_to_its_choice(memory: type[Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_model()
    model = SlimWhisper(network)
    assert model.default_batch_size() == 16
    monkeypatch.setattr(network, "device", GPU)
    memory.free = 2 * 100 * slot_bytes(network, Search())
    model.release()
    assert model.default_batch_size() == 96
    beams = model.default_batch_size(beam_size=5)
    assert 8 <= beams < 40 and beams % 8 == 0  # five texts a window, and one drawn at a temperature
    memory.free //= 3  # as after its engine was made
    assert (model.default_batch_size(), model.default_batch_size(beam_size=5)) == (96, beams)
    model.release()
    assert model.default_batch_size() == 32
