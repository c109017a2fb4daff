"""The guard: what it measures, when it acts, and what it says."""

import itertools
import logging
from dataclasses import replace
from functools import cache

import pytest
import torch

from slimwhisper import guard
from slimwhisper.cache.fold import Activations, Attention, Folded, blocks_of, fold
from slimwhisper.cache.forms import parse_form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.guard import Inspection, guarded_plan, measure
from slimwhisper.model.model import Model
from tests.support.checkpoints import tiny_dims
from tests.support.few_tokens import random_checkpoint
from tests.support.reference import set_spectrum

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RANDOM = random_checkpoint(tiny_dims(width=128, heads=2), seed=0)
DIMS, STATE = RANDOM.dims, dict(RANDOM.state)
INVERSE = (("cross", "k"), ("cross", "v"), ("cross", "hybrid"), ("self", "k"), ("self", "v"))


@cache
def checkpoint(condition: float) -> Checkpoint:
    return replace(RANDOM, state=set_spectrum(STATE, DIMS, condition))


@cache
def activations(condition: float) -> Activations:
    return guard.record_activations(checkpoint(condition))


def inspect(
    condition: float, attention: str, form: str, dtype: torch.dtype, layer: int = 0
) -> tuple[Folded, Inspection]:
    blocks = list(blocks_of(checkpoint(condition).state, DIMS, attention))
    return guard.inspect_block(*blocks[layer], parse_form(form), activations(condition), dtype)


@pytest.mark.parametrize("condition", [3.0, 1e2, 5e9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_acts_on_ill_conditioned_weights_alone(condition: float, dtype: torch.dtype) -> None:
    for (attention, form), layer in itertools.product(INVERSE, range(DIMS.n_text_layer)):
        folded, record = inspect(condition, attention, form, dtype, layer)
        # float32 weights cannot hold a condition number far above 1e7 to the digit
        assert record.condition == pytest.approx(condition, rel=0.02) or condition > 1e7
        assert record.condition > 0.9 * condition
        trivial = form == "hybrid" and layer == 0  # W_K,new = 1: nothing dropped but V
        if not trivial:
            assert record.fell_back == (condition >= 1e2)
        latent = {"cross": "e", "self": "x"}[attention]
        assert str(folded.form) == record.used == (latent if record.fell_back else form)
        assert record.baseline_error > 0


def test_weights_that_overflow_half_precision_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the error."""
    monkeypatch.setattr(guard, "measure", lambda *_: (0.0, 1.0))
    _, record = inspect(5e9, "cross", "k", torch.float16)
    assert record.largest > 65_504
    assert not record.fits
    assert record.fell_back


def test_a_singular_matrix_is_refused_not_fatal() -> None:
    state, key = dict(STATE), "decoder.blocks.0.attn.key.weight"
    state[key] = state[key].clone()
    state[key][:, 0] = 0
    plan = guarded_plan(replace(RANDOM, state=state), ("e", "k"), torch.float32)
    assert plan.inspections[0].fell_back and plan.inspections[0].used == "x"
    assert guard.condition_number(torch.zeros(3, 3)) == float("inf")


def test_nothing_falls_back_silently(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="slimwhisper"):
        plan = guarded_plan(checkpoint(1e6), ("k", "k"), torch.float32)
    assert len(plan.fallbacks) == len(caplog.records) == 2
    for line, attention, used in zip(plan.fallbacks, ("cross", "self"), "ex", strict=True):
        assert f"{attention}-attention cache 'k' is not exact in 2 of 2 layers" in line
        assert f"they use {used!r}" in line
    assert [str(f.form) for f in plan.cross] == ["e", "e"]
    assert [str(f.form) for f in plan.self_] == ["x", "x"]


def test_a_single_bad_layer_falls_back_alone() -> None:
    state = set_spectrum(STATE, DIMS, 3.0)
    bad = set_spectrum(STATE, DIMS, 1e8)
    for name in ("key", "value"):
        key = f"decoder.blocks.1.attn.{name}.weight"
        state[key] = bad[key]
    plan = guarded_plan(replace(RANDOM, state=state), ("k", "k"), torch.float32)
    assert [str(f.form) for f in plan.cross] == ["k", "k"]
    assert [str(f.form) for f in plan.self_] == ["k", "x"]
    assert "1 of 2 layers" in plan.fallbacks[0]
    guarded_plan(checkpoint(3.0), ("k", "k"), torch.float32, strict=True)  # else it raises


def test_the_default_needs_no_inverse_and_no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr("slimwhisper.guard.record_activations", never)
    monkeypatch.setattr("slimwhisper.cache.fold.Attention.solve", never)
    plan = guarded_plan(checkpoint(5e9), ("e", "x"), torch.float32)
    assert not plan.inspections
    assert {str(f.form) for f in plan.cross} == {"e"}
    with pytest.raises(AssertionError, match="the guard"):
        Model(checkpoint(3.0), CPU, torch.float32, ("e", "k"))


def test_measured_error_is_that_of_rounding() -> None:
    """The baseline's is a few units of rounding; the form's is that times what it amplifies by."""
    block = Attention.from_state(checkpoint(1e4).state, "decoder.blocks.0.cross_attn.", 2)
    source = torch.randn(200, 128, generator=torch.Generator().manual_seed(0))
    for dtype in DTYPES:
        unit = torch.finfo(dtype).eps / 2
        error, baseline = measure(block, fold(block, "k"), source, dtype)
        assert 0.1 * unit < baseline < 10 * unit
        assert 100 * baseline < error < 1e4 * baseline
    assert measure(block, fold(block, "k"), source, torch.float64)[0] < 1e-10
    for form in ("kv", "e"):
        error, baseline = measure(block, fold(block, form), source, torch.float32)
        assert error == pytest.approx(baseline)
    own = Attention.from_state(checkpoint(1e4).state, "decoder.blocks.0.attn.", 2)
    error, baseline = measure(own, fold(own, "v"), source[:50], torch.float32)
    assert error > 100 * baseline, "of rebuilt keys, where a flat softmax would forgive it too"
