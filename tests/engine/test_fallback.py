"""Temperatures: what the samples depend on."""

from typing import Any

import pytest

from slimwhisper.api import SlimWhisper
from tests.support.parity import transcribe_each
from tests.support.sounds import noise_bursts
from tests.support.windows import VOCABULARY, short_model

RECORDINGS = [noise_bursts(2 + i / 2, 30 + i) for i in range(6)]  # a window each
BASE: dict[str, Any] = {
    "without_timestamps": True,
    "suppress_tokens": tuple(VOCABULARY.timestamps),  # all: nothing is left for later
    "sample_len": 8,
    "compression_ratio_threshold": None,
    "no_speech_threshold": None,
}


@pytest.fixture(scope="module")
def model() -> SlimWhisper:
    return SlimWhisper(short_model())


def test_the_seed_is_the_draw(model: SlimWhisper) -> None:
    def texts(seed: int) -> list[str]:
        options = {**BASE, "temperature": 0.9, "seed": seed}
        return [r["text"] for r in transcribe_each(model, RECORDINGS[:4], **options)]

    first = texts(0)
    assert texts(0) == first
    assert all(a != b for a, b in zip(texts(1), first, strict=True))
    assert len(set(first)) >= 2  # of their own audio


def test_the_best_of_several_is_the_most_likely(model: SlimWhisper) -> None:
    """The first of three draws is the one draw: three are never worse."""
    options = {**BASE, "temperature": 1.0}

    def scores(best_of: int) -> list[float]:
        found = transcribe_each(model, RECORDINGS, **options, best_of=best_of)
        return [
            s["avg_logprob"] * (len(s["tokens"]) + 1) / max(1, len(s["tokens"]))
            for r in found
            for s in r["segments"]
        ]

    one, three = scores(1), scores(3)
    assert all(b >= a - 1e-5 for a, b in zip(one, three, strict=True))
    assert sum(b > a + 1e-3 for a, b in zip(one, three, strict=True)) >= 2
