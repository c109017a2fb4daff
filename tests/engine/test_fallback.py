"""Temperatures: who is tried again, from which audio, and what the samples depend on."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.engine.runner import GroupRunner
from slimwhisper.engine.scheduler import Ticket
from tests.support.parity import differences, transcribe_each
from tests.support.sounds import noise_bursts
from tests.support.windows import VOCABULARY, short_model

RECORDINGS = [noise_bursts(2 + i / 2, 30 + i) for i in range(6)]  # a window each
LADDER = (0.0, 0.4, 0.8, 1.0)
BASE: dict[str, Any] = {
    "without_timestamps": True,
    "suppress_tokens": tuple(VOCABULARY.timestamps),  # all: nothing is left for later
    "sample_len": 8,
    "compression_ratio_threshold": None,
    "no_speech_threshold": None,
    "temperature": LADDER,
}


@pytest.fixture(scope="module")
def model() -> SlimWhisper:
    return SlimWhisper(short_model())


@pytest.mark.parametrize("search", [{}, {"beam_size": 3, "best_of": 2}])
def test_when_all_fail_at_once_no_window_is_lost(
    model: SlimWhisper, monkeypatch: pytest.MonkeyPatch, search: dict[str, Any]
) -> None:
    """More texts to sample than the sampling group has rows: the others wait in their slots."""
    options = {**BASE, **search, "logprob_threshold": 1.0}  # no text is that likely
    some = RECORDINGS[:4]
    alone = [model.transcribe(a, **options) for a in some]
    start, started = GroupRunner.start, list[float]()  # the temperature of each text begun

    def begin(runner: GroupRunner, first: int, tickets: Sequence[Ticket], *rest: Any) -> None:
        started.extend(t.window.attempt.temperature for t in tickets)
        start(runner, first, tickets, *rest)

    monkeypatch.setattr(GroupRunner, "start", begin)
    with patch.object(model.network, "encoder", wraps=model.network.encoder) as encoder:
        found = transcribe_each(model, some, **options, batch_size=len(some))
    assert [s["temperature"] for r in found for s in r["segments"]] == [LADDER[-1]] * len(some)
    assert sum(len(call.args[0]) for call in encoder.call_args_list) == len(some)
    assert [started.count(heat) for heat in LADDER] == [len(some)] * len(LADDER)
    for ours, other in zip(found, alone, strict=True):
        assert not differences(ours, other)


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
