"""Form `sparse`: small weights are left out of the second product, and what that saves."""

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.approximate.sparse import SparseSettings
from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.forms import settings_of
from slimwhisper.cache.plan import DecoderCache
from tests.cache.test_caches import FRAMES, HEADS, LENGTH, WIDTH, noise, plan, weights
from tests.support.formulas import PlainAttention
from tests.support.steps import self_step, steps_without_values


def allocate(cross: str, own: str, slots: int) -> DecoderCache:
    return DecoderCache.allocate(plan(cross, own), slots, FRAMES, LENGTH)


def attend_sparse(
    p: PlainAttention, x: Tensor, source: Tensor, threshold: float
) -> tuple[Tensor, int]:
    """One query x [1, d], head by head and position by position; the rows of V that it read."""
    rows, width, outputs = 0, WIDTH // HEADS, []
    for i in range(HEADS):
        c = slice(i * width, (i + 1) * width)
        q = x @ p.w_q[:, c] + p.b_q[c]
        w = (q @ (source @ p.w_k[:, c]).T * width**-0.5).softmax(dim=-1)[0]
        total = torch.zeros(width, dtype=torch.float64)
        for t in range(len(source)):
            if w[t] >= threshold:
                total = total + w[t] * (source[t] @ p.w_v[:, c])
                rows += 1
        outputs.append(total)
    return (torch.cat(outputs) @ p.w_o + p.b_v @ p.w_o + p.b_o)[None], rows


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("threshold", [0.002, 0.015, 0.04])
def test_cross(threshold: float, gathered: bool) -> None:
    cache = allocate(f"sparse:threshold={threshold}", "x", 3)
    features, x = noise(3, FRAMES, WIDTH, seed=2), noise(6, 1, WIDTH, seed=3) * 2
    cache.cross.put(torch.arange(3), features)
    slots = torch.tensor([2, 0, 1, 1, 2, 0]) if gathered else torch.arange(6) // 2
    rows = Rows.of(torch.arange(6), slots) if gathered else Rows.block(3, 2)
    for i, layer in enumerate(cache.cross.layers):
        assert layer.read_bytes(1) == 2 * 8 * FRAMES * WIDTH  # nothing is known yet
        found, read = layer.attend(x, rows), 0
        for row, slot in enumerate(slots.tolist()):
            p = weights("cross_attn", i)
            expected, count = attend_sparse(p, x[row], features[slot], threshold)
            torch.testing.assert_close(found[row], expected)
            read += count
        share = read / (6 * HEADS * FRAMES)
        assert 0 < share < 1
        assert layer.read_bytes(1) == pytest.approx((1 + share) * 8 * FRAMES * WIDTH)


def test_self() -> None:
    threshold, text, texts = 0.05, noise(6, WIDTH, seed=4) * 2, torch.tensor([5, 3])
    cache = allocate("e", f"sparse:threshold={threshold}", 2)
    own, rows, read = cache.self_.layers[1], Rows.block(2), 0
    own.prefill(text[:5].expand(2, 5, WIDTH), rows)
    step = Step.at(rows, texts, 6, False, torch.float64)
    found = self_step(own, text[texts][:, None], step)
    for row, last in enumerate(texts.tolist()):
        p, asking = weights("attn", 1), text[last : last + 1]
        expected, count = attend_sparse(p, asking, text[: last + 1], threshold)
        torch.testing.assert_close(found[row], expected)
        read += count
    share = read / (HEADS * (6 + 4))
    assert 0 < share < 1
    assert own.read_bytes(0, 5) == pytest.approx((1 + share) * 8 * 5 * WIDTH)


def test_a_prompt_is_exact() -> None:
    """Its tokens read V together."""
    found, x = [], noise(2, 4, WIDTH, seed=3)
    for form in ("sparse:threshold=0.5", "kv"):
        cache = allocate(form, form, 2)
        cache.cross.put(torch.arange(2), noise(2, FRAMES, WIDTH, seed=2))
        rows = Rows.block(2)
        found.append(
            [cache.cross.layers[0].attend(x, rows), cache.self_.layers[0].prefill(x, rows)]
        )
    for ours, exact in zip(*found, strict=True):
        assert torch.equal(ours, exact)


@pytest.mark.parametrize("threshold", [0, 0.01, 0.03, 0.99])
def test_a_latent_has_no_traffic_to_save(threshold: float) -> None:
    """With keys and values a step reads K and some of V. A latent is read once for both products,
    whatever the weights are: d values a position, which `sparse` only reaches without any of V.
    """
    cache, latent = allocate(f"sparse:threshold={threshold}", "x", 2), allocate("e", "x", 2)
    features, x = noise(2, FRAMES, WIDTH, seed=2), noise(2, 1, WIDTH, seed=3)
    for each in (cache, latent):
        each.cross.put(torch.arange(2), features)
        each.cross.layers[0].attend(x, Rows.block(2))
    exact = allocate("kv", "x", 2).cross.layers[0].read_bytes(0)
    read, once = (each.cross.layers[0].read_bytes(0) for each in (cache, latent))
    assert once == 8 * FRAMES * WIDTH == exact / 2
    assert once <= read <= exact
    assert (read == exact) == (threshold == 0) and (read == once) == (threshold == 0.99)
    assert cache.cross.nbytes() == 2 * 2 * latent.cross.nbytes()  # two layers, K and V


def test_at_most_one_over_threshold_rows_are_read() -> None:
    cache = allocate("sparse:threshold=0.1", "x", 1)
    layer = cache.cross.layers[0]
    cache.cross.put(torch.arange(1), noise(1, FRAMES, WIDTH, seed=2))
    layer.attend(noise(1, 1, WIDTH, seed=3) * 9, Rows.block(1))
    assert 8 * FRAMES * WIDTH < layer.read_bytes(0) <= 8 * (FRAMES + 10) * WIDTH


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    found = []
    for kind in (dtype, torch.float64):
        made = plan("sparse", "sparse").to(torch.device("cpu"), kind)
        cache, rows = DecoderCache.allocate(made, 2, FRAMES, LENGTH), Rows.block(2)
        cache.cross.put(torch.arange(2), noise(2, FRAMES, WIDTH, seed=2).to(kind))
        x = noise(2, 3, WIDTH, seed=3).to(kind)
        cache.self_.layers[0].prefill(x, rows)
        step = Step.at(rows, torch.tensor([3, 2]), 4, False, kind)
        steps = self_step(cache.self_.layers[0], x[:, :1], step)
        found.append([cache.cross.layers[0].attend(x[:, :1], rows).double(), steps.double()])
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < 50 * torch.finfo(dtype).eps * exact.norm()


def test_without_memory() -> None:
    """A cache on the "meta" device says what it would hold and read."""
    meta = torch.device("meta")
    cache = DecoderCache.allocate(plan("sparse", "sparse"), 2, FRAMES, LENGTH, 1, meta)
    assert cache.cross.layers[0].read_bytes(0) == 2 * 8 * FRAMES * WIDTH
    assert cache.self_.layers[0].read_bytes(0, 10) == 2 * 8 * 10 * WIDTH


@pytest.mark.parametrize("form", ["sparse", "sparse:threshold=0.01"])
def test_a_step_reads_nothing_on_the_host(form: str) -> None:
    """It runs where tensors have no values, so it can be captured as a CUDA graph."""
    steps_without_values(plan(form, form), FRAMES, LENGTH)


def test_settings() -> None:
    assert settings_of("sparse") == SparseSettings(1e-4)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"^threshold={wrong}: give 0"):
            SparseSettings(wrong)
