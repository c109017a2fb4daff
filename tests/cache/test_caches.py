"""What forms, rows and pages have in common, and how forms are chosen."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.base import PAGE, DecodeStep, Rows, StoreShape
from slimwhisper.cache.decoder_cache import CachePlan, SelfCache
from slimwhisper.cache.fold import Context, fold
from slimwhisper.cache.forms import X8, choose_forms, names_of
from slimwhisper.cache.latent import LatentAttention, LatentCross, prefers_latent
from slimwhisper.errors import OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan, record_activations
from slimwhisper.kernels.attention import Latent
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.model.model import Model
from tests.support.cache_forms import (
    CPU,
    FRAMES,
    HEADS,
    LENGTH,
    WIDTH,
    block,
    caches,
    cross_reference,
    noise,
    plan,
    run_text,
    self_reference,
    self_step,
)


def test_the_hybrids_first_layer_has_no_key_map() -> None:
    """It keeps its own keys: 3 d^2 products a step, not 4 (section 6, end)."""
    first, other = plan("hybrid", "x").cross
    assert first.key_map is None and first.value_map is not None
    assert other.key_map is not None


@pytest.mark.parametrize("form", names_of("self"))
@pytest.mark.parametrize("skip_same", [False, True])
def test_rows_that_become_others(form: str, skip_same: bool) -> None:
    """Beams of three windows that go on as each other, in pages in any order; each row's text is
    still its own, and a step copies one page of a row at most.
    """
    generator = torch.Generator().manual_seed(0)
    pages = -(-LENGTH // PAGE)
    cache = SelfCache(plan("e", form).to(CPU, torch.float64), 6, LENGTH)
    table = torch.randperm(6 * pages, generator=generator).view(6, pages)
    rows, layer = Rows(torch.arange(6), torch.arange(3), 2, table), cache.layers[1]
    prompts = [noise(n, WIDTH, seed=n) for n in (3, 3, 14, 14, 9, 9)]
    padded = torch.stack([torch.nn.functional.pad(p, (0, 0, 0, 14 - len(p))) for p in prompts])
    layer.prefill(padded, rows)
    texts = [list(p) for p in prompts]
    for n in range(17):
        x, at = noise(6, WIDTH, seed=40 + n), torch.tensor([len(text) for text in texts])
        step = DecodeStep.at(rows, at, int(at.max()) + 1, False, torch.float64)
        for row, y in enumerate(self_step(layer, x[:, None], step)[:, 0]):
            texts[row].append(x[row])
            torch.testing.assert_close(y, self_reference(form, 1, torch.stack(texts[row]), 1)[-1])
        chosen = torch.randint(0, 2, (6,), generator=generator) + torch.arange(6) // 2 * 2
        cache.copy_rows(rows, chosen, at + 1, skip_same)
        texts = [list(texts[i]) for i in chosen.tolist()]


def test_prefill_takes_the_cheaper_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries a slot go by the latent, many through K and V made for the moment."""
    ran: list[str] = []
    for name in ("by_latent", "by_heads"):
        original = getattr(LatentAttention, name)

        def spy(self: LatentAttention, *args: Tensor, name: str = name, original=original):
            ran.append(name)
            return original(self, *args)

        monkeypatch.setattr(LatentAttention, name, spy)
    folded = fold(block("cross", 0), "e").to(CPU, torch.float64)
    cross = LatentCross(
        folded, StoreShape(1, FRAMES, CPU, torch.float64, Kernels(CPU, torch.float64))
    )
    for tokens in (1, 32, 60):
        cross.attend(noise(1, tokens, WIDTH), Rows.block(1))
    assert ran == ["by_latent", "by_latent", "by_heads"]
    assert [prefers_latent(t, HEADS, WIDTH) for t in (1, 32, 60)] == [True, True, False]
    assert [prefers_latent(t, 20, 1280) for t in (4, 67, 68)] == [True, True, False]
    assert [prefers_latent(t, 20, 1280, cost=8) for t in (4, 8, 9)] == [True, True, False]


def test_float8_columns_are_scaled_by_the_norms_weight() -> None:
    """No smaller than a 64th of its bias; other scales are as right, but round more."""
    weight, bias = noise(WIDTH, seed=6), noise(WIDTH, seed=7)
    weight[0], bias[0], weight[1], bias[1] = 0, 64, 0, 0
    folded = fold(block("self", 0), "x8", Context(norm=(weight, bias)))
    expected = weight.abs().maximum(bias.abs() / 64)
    expected[1] = 1e-6
    torch.testing.assert_close(folded.column_scales, expected)
    assert torch.equal(folded.offset, bias)


# In float8: exact folding, bounded rounding, half the bytes


NORM = (noise(WIDTH, seed=20).abs() + 0.05, noise(WIDTH, seed=21) * 3)


def plan_of_8(norm: tuple[Tensor, Tensor] = NORM, mean: Tensor | None = None) -> CachePlan:
    learned = None if mean is None else [{"mean": mean}] * 2
    crosses, owns = (
        [fold(block(name, i), form, Context(norm=norm)) for i in range(2)]
        for name, form in (("cross", "e8"), ("self", X8(learned=learned)))
    )
    return CachePlan(crosses, owns).to(CPU, torch.float64)


def normed(*shape: int, seed: int, norm: tuple[Tensor, Tensor] = NORM) -> Tensor:
    """What a layer norm with this weight and bias gives."""
    return torch.nn.functional.layer_norm(noise(*shape, seed=seed), shape[-1:], *norm)


def cross_of_8(features: Tensor, x: Tensor, norm: tuple[Tensor, Tensor] = NORM) -> Tensor:
    cache = caches(plan_of_8(norm), len(features))
    cache.cross.put(torch.arange(len(features)), features)
    return cache.cross.layers[1].attend(x, Rows.block(len(features)))


def decode_text(text: Tensor, prompt: int, mean: Tensor | None = None) -> Tensor:
    """A text [T, d]: its beginning as a prompt, the rest step by step."""
    layer = caches(plan_of_8(mean=mean), 1).self_.layers[1]
    return run_text(layer, text, prompt)


@pytest.mark.parametrize("tokens", [1, 60], ids=["step", "prompt"])
def test_without_rounding_folding_is_exact(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.kernels.attention.FP8", torch.float64)
    monkeypatch.setattr(Latent, "write", lambda self, index, x: self.values.__setitem__(index, x))
    monkeypatch.setattr(Latent, "dequantized", lambda self, dtype: self.values)
    features, x = normed(2, FRAMES, WIDTH, seed=2), noise(2, tokens, WIDTH, seed=3)
    expected = [cross_reference("e", 1, x[i], features[i]) for i in range(2)]
    torch.testing.assert_close(cross_of_8(features, x), torch.stack(expected))
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
        rounded = cross_of_8(features, x, norm)
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
    layer = caches(plan_of_8(), 1).self_.layers[0]
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
