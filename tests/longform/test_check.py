"""`check` through the engine: a text does not depend on the recordings beside it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.longform import session
from slimwhisper.types import Segment
from tests.support.parity import differences, transcribe_each
from tests.support.sounds import noise_bursts

RECORDINGS = [noise_bursts(2 + i / 2, 30 + i) for i in range(4)]  # a window each
BASE: dict[str, Any] = {
    "without_timestamps": True,
    "suppress_tokens": tuple(range(50_364, 51_865)),  # all timestamps: nothing is left for later
    "sample_len": 6,
    "compression_ratio_threshold": None,
    "no_speech_threshold": None,
    "logprob_threshold": None,
}
SLOW = pytest.mark.slow
OPTIONS = [
    pytest.param({"best_of": 2}, id="samples"),
    pytest.param({"beam_size": 2, "word_timestamps": True}, id="beams, words", marks=SLOW),
    pytest.param({"multilingual": True, "initial_prompt": "Names"}, id="languages", marks=SLOW),
]


@pytest.fixture(scope="module")
def model(random_paths: dict[str, Path]) -> SlimWhisper:
    return slimwhisper.load_model(random_paths["multilingual"], "cpu")


@pytest.fixture(autouse=True)
def most_texts_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def flagged(segments: Sequence[Segment], *_: Any) -> list[Segment]:
        return [replace(s, flags=("repeats",) * (sum(s.tokens) % 3 > 0)) for s in segments]

    monkeypatch.setattr(session, "flagged", flagged)


@pytest.mark.parametrize("options", OPTIONS)
def test_alone_and_together(model: SlimWhisper, options: dict[str, Any], numba: None) -> None:
    options = BASE | options
    plain = transcribe_each(model, RECORDINGS, batch_size=4, **options)
    found = transcribe_each(model, RECORDINGS, batch_size=4, check=True, **options)
    replaced = 0
    for audio, before, after in zip(RECORDINGS, plain, found, strict=True):
        alone = model.transcribe(audio, temperature=0, check=True, **options)
        assert not differences(alone, after)
        first, kept = before["segments"][0], after["segments"][0]
        if "flags" not in first:
            assert kept["tokens"] == first["tokens"]
        elif kept["tokens"] != first["tokens"]:
            assert "flags" not in kept and kept["temperature"] in (0.2, 0.4, 0.6)
            replaced += 1
    assert replaced > 0
