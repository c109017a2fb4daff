"""What forms, rows and pages have in common, and how forms are chosen."""

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.base import PAGE, DecodeStep, Rows, StoreShape
from slimwhisper.cache.decoder_cache import SelfCache
from slimwhisper.cache.fold import Context, fold
from slimwhisper.cache.forms import names_of
from slimwhisper.cache.latent import LatentAttention, LatentCross, prefers_latent
from slimwhisper.kernels.dispatch import Kernels
from tests.support.cache_forms import (
    CPU,
    FRAMES,
    HEADS,
    LENGTH,
    WIDTH,
    block,
    noise,
    plan,
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
