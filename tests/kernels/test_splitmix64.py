"""Random numbers against SplitMix64's reference implementation."""

import pytest
import torch

from slimwhisper.engine.sampling import uniform


def test_numbers_are_splitmix64s() -> None:
    """The first numbers that its reference implementation gives for the seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seed, counts = torch.tensor(1234567), torch.arange(1, 4)
    found = (uniform(seed, counts, 53, torch.float64) * 2**53).tolist()
    assert found == pytest.approx([n >> 11 for n in expected], abs=1, rel=0)
    few = (uniform(seed, counts, 23, torch.float32) * 2**23 - 0.5).tolist()
    assert few == [n >> 41 for n in expected]
    many = uniform(torch.arange(4)[:, None], torch.arange(1, 100_001), 53, torch.float64)
    assert float(many.min()) > 0 and float(many.max()) < 1
    assert many.mean(dim=1).tolist() == pytest.approx([0.5] * 4, abs=4e-3)
