"""Counts what a model's encoder is called with."""

from collections.abc import Iterator

import pytest
from torch import Tensor

from slimwhisper.api import SlimWhisper


@pytest.fixture
def encoded(model: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many windows each call of the encoder has."""
    counts: list[int] = []
    encode = model.network.encoder

    def counted(mel: Tensor) -> Tensor:
        counts.append(len(mel))
        return encode(mel)

    monkeypatch.setattr(model.network, "encoder", counted)
    yield counts
