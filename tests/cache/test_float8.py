"""Caches in float8: exact folding, bounded rounding, half the bytes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import CachePlan
from slimwhisper.cache.fold import Context, fold
from slimwhisper.cache.forms import X8, choose_forms
from slimwhisper.errors import OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan, record_activations
from slimwhisper.kernels.attention import Latent
from slimwhisper.model.model import Model
from tests.support.cache_forms import (
    CPU,
    FRAMES,
    WIDTH,
    block,
    caches,
    cross_reference,
    noise,
    run_text,
    self_reference,
    self_step,
)

NORM = (noise(WIDTH, seed=20).abs() + 0.05, noise(WIDTH, seed=21) * 3)


def plan(norm: tuple[Tensor, Tensor] = NORM, mean: Tensor | None = None) -> CachePlan:
    learned = None if mean is None else [{"mean": mean}] * 2
    crosses, owns = (
        [fold(block(name, i), form, Context(norm=norm)) for i in range(2)]
        for name, form in (("cross", "e8"), ("self", X8(learned=learned)))
    )
    return CachePlan(crosses, owns).to(CPU, torch.float64)


def normed(*shape: int, seed: int, norm: tuple[Tensor, Tensor] = NORM) -> Tensor:
    """What a layer norm with this weight and bias gives."""
    return torch.nn.functional.layer_norm(noise(*shape, seed=seed), shape[-1:], *norm)


def cross(features: Tensor, x: Tensor, norm: tuple[Tensor, Tensor] = NORM) -> Tensor:
    cache = caches(plan(norm), len(features))
    cache.cross.put(torch.arange(len(features)), features)
    return cache.cross.layers[1].attend(x, Rows.block(len(features)))


def decode_text(text: Tensor, prompt: int, mean: Tensor | None = None) -> Tensor:
    """A text [T, d]: its beginning as a prompt, the rest step by step."""
    layer = caches(plan(mean=mean), 1).self_.layers[1]
    return run_text(layer, text, prompt)


@pytest.mark.parametrize("tokens", [1, 60], ids=["step", "prompt"])
def test_without_rounding_folding_is_exact(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.kernels.attention.FP8", torch.float64)
    monkeypatch.setattr(Latent, "write", lambda self, index, x: self.values.__setitem__(index, x))
    monkeypatch.setattr(Latent, "dequantized", lambda self, dtype: self.values)
    features, x = normed(2, FRAMES, WIDTH, seed=2), noise(2, tokens, WIDTH, seed=3)
    expected = [cross_reference("e", 1, x[i], features[i]) for i in range(2)]
    torch.testing.assert_close(cross(features, x), torch.stack(expected))
    text = normed(9, WIDTH, seed=4)
    for mean in (None, noise(WIDTH, seed=6) * 9):
        torch.testing.assert_close(decode_text(text, 5, mean), self_reference("x", 1, text, 5))


def error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def test_rounding_is_bounded_whatever_the_norm_is() -> None:
    x = noise(2, 1, WIDTH, seed=3)
    plainest = torch.ones(WIDTH, dtype=torch.float64), torch.zeros(WIDTH, dtype=torch.float64)
    weight, bias = NORM[0].clone(), NORM[1] * 100  # columns with a large mean, as Whisper has some
    weight[5], weight[6] = 0, 30
    for norm in (plainest, NORM, (weight, bias)):
        features = normed(2, FRAMES, WIDTH, seed=2, norm=norm)
        rounded = cross(features, x, norm)
        expected = torch.stack([cross_reference("e", 1, x[i], features[i]) for i in range(2)])
        assert 1e-5 < error(rounded, expected) < 0.1
    text = normed(9, WIDTH, seed=4)
    assert 1e-5 < error(decode_text(text, 5), self_reference("x", 1, text, 5)) < 0.05


def test_columns_that_hardly_change_cost_nothing_without_their_mean() -> None:
    text = normed(9, WIDTH, seed=4)
    text[:, ::8] = 20 * NORM[0][::8] * (1 + text[:, ::8] / 1000)
    expected = self_reference("x", 1, text, 5)
    with_mean, without = (error(decode_text(text, 5, m), expected) for m in (text.mean(0), None))
    assert with_mean < 0.003 < without / 3, (with_mean, without)


def test_a_model_learns_the_means_of_its_texts(digits_path: Path) -> None:
    checkpoint = load_checkpoint(digits_path)
    forms = choose_forms(cache_dtype="fp8")
    model = Model(checkpoint, CPU, torch.float32, forms, guarded_plan)
    expected = [x.mean(dim=0) for x in record_activations(checkpoint).self_inputs]
    for folded, mean in zip(model.plan.self_, expected, strict=True):
        torch.testing.assert_close(folded.offset, mean)


def test_what_is_kept() -> None:
    x = noise(3, 40, WIDTH, seed=5) * 10 ** torch.linspace(-6, 4, 40, dtype=torch.float64)[:, None]
    kept = Latent.allocate((4, 50, WIDTH), CPU, torch.float64, fp8=True)
    kept.write((torch.tensor([[2], [0], [1]]), torch.arange(40)), x)
    back = kept[torch.tensor([2, 0, 1])][:, :40].dequantized(torch.float64)
    largest = x.abs().amax(dim=-1, keepdim=True)
    assert ((back - x).abs() <= x.abs() / 16 + largest / 448 * 2**-10).all()
    assert (kept.dequantized(torch.float64)[3] == 0).all()
    kept.write(torch.tensor([3]), torch.zeros(1, 50, WIDTH))  # silence divides by nothing
    assert (kept.dequantized(torch.float64)[3] == 0).all()


def test_a_fresh_text_never_meets_the_last_ones_numbers() -> None:
    layer = caches(plan(), 1).self_.layers[0]
    text = normed(4, WIDTH, seed=4)
    results = []
    for _ in range(2):
        layer.prefill(text[None, :3], Rows(*torch.zeros(2, 1, dtype=torch.int64)))
        step = DecodeStep.at(Rows.block(1), torch.tensor([3]), 9, False, torch.float64)
        results.append(self_step(layer, text[None, 3:], step))
        layer.tensors[0].view(torch.uint8).fill_(0x7F)
        layer.tensors[1].fill_(float("nan"))
    assert torch.equal(*results)


def test_float8_goes_with_slim_alone() -> None:
    assert [*map(str, choose_forms(cache_dtype="fp8"))] == ["e8", "x8"]
    for arguments in ({"cache": "option2"}, {"cross_cache": "kv"}, {"self_cache": "k"}):
        with pytest.raises(OptionError, match="cache_dtype: fp8 is for cross-attention form 'e'"):
            choose_forms(**arguments, cache_dtype="fp8")
    with pytest.raises(OptionError, match="cache_dtype: 'int8' is not one of fp8"):
        choose_forms(cache_dtype="int8")
