"""A decoder layer's blocks in C against float64, and that a step calls nothing else of C."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels.attention import ALL, CacheWrite, Latent, Reads
from slimwhisper.kernels.blocks import LatentBlock, MLPBlock
from slimwhisper.kernels.cpu.library import BFLOAT16_ROWS, Library, library
from tests.support.compiled import THREADS, noise, threads_of
from tests.support.fuzz import examples
from tests.support.windows import decode, random_model, windows

HEADS, SIZE, WIDTH, WIDE = 3, 32, 96, 160
pytestmark = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def assert_near(found: Tensor | None, exact: Tensor) -> None:
    """In float32 within 2e-5; in bfloat16 each part is rounded."""
    assert found is not None
    off = 2e-5 if found.dtype == torch.float32 else 0.03
    torch.testing.assert_close(found.double(), exact, atol=off, rtol=off)


def made(found: Any) -> Any:
    """What C does not leave to PyTorch."""
    assert found is not None
    return found


def latent_weights(dtype: torch.dtype) -> list[Tensor]:
    """query, key_map, value_map, out, and the biases of query and out."""
    square, maps = (WIDTH, WIDTH), (HEADS, SIZE, WIDTH)
    shapes = (square, maps, maps, square, (WIDTH,), (WIDTH,))
    return [(noise(*s, seed=i) / 10).half().to(dtype) for i, s in enumerate(shapes)]


def mlp_weights(dtype: torch.dtype) -> list[Tensor]:
    shapes = ((WIDE, WIDTH), (WIDTH, WIDE), (WIDE,), (WIDTH,))
    return [(noise(*s, seed=i) / 5).half().to(dtype) for i, s in enumerate(shapes)]


def halves_of(weights: list[Tensor]) -> list[Tensor]:
    """As a model keeps them: biases are in float32."""
    return [w.half() if w.ndim > 1 else w for w in weights]


def attended(x: Tensor, weights: list[Tensor], latents: list[Tensor]) -> Tensor:
    """From the definition, in float64: x [R, 1, d], the latent [T, d] of each row -> [R, 1, d]."""
    query, key_map, value_map, out, query_bias, out_bias = (w.double() for w in weights)
    results = []
    for row, latent in zip(x[:, 0].double(), latents, strict=True):
        z = latent.double()
        q = (query @ row + query_bias).view(HEADS, SIZE)
        scores = torch.einsum("hk,hkd,td->ht", q, key_map, z) * SIZE**-0.5
        mixed = torch.einsum("hkd,ht,td->hk", value_map, scores.softmax(-1), z)
        results.append(out @ mixed.flatten() + out_bias)
    return torch.stack(results)[:, None]


@examples(25)
@given(windows=st.integers(1, 5), group=st.integers(1, 3), threads=THREADS)
def test_attention_to_slots(any_c: Library, windows: int, group: int, threads: int) -> None:
    """Of any windows, with lengths, and several rows of each; what is past them is never read."""
    dtype = any_c.dtype
    weights, latent = latent_weights(dtype), noise(7, 130, WIDTH, seed=9, dtype=dtype)
    slots, lengths = torch.arange(windows).flip(0) + 2, 7 * torch.arange(windows) + 90
    clean = latent.clone()
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        latent[slot, length:] = torch.nan
    x = noise(windows * group, 1, WIDTH, seed=8, dtype=dtype)
    block = made(LatentBlock.of(any_c, *weights))
    with threads_of(threads):
        found = block(x, latent, Reads(slots, lengths), windows)
        whole = block(x, clean[:windows], ALL, windows)
    read = [clean[s, :n] for s, n in zip(slots, lengths, strict=True) for _ in range(group)]
    assert_near(found, attended(x, weights, read))
    assert_near(whole, attended(x, weights, [z for z in clean[:windows] for _ in range(group)]))
    if dtype == torch.float32:  # by halves bit for bit the same
        other = made(LatentBlock.of(any_c, *halves_of(weights)))
        with threads_of(threads):
            assert torch.equal(other(x, clean[:windows], ALL, windows), whole)


def test_attention_to_pages(any_c: Library) -> None:
    weights, pages = latent_weights(any_c.dtype), noise(9, 16, WIDTH, seed=9, dtype=any_c.dtype)
    table, lengths = torch.tensor([[7, 1, 4], [0, 8, 2]]), torch.tensor([33, 48])
    x = noise(2, 1, WIDTH, seed=8, dtype=any_c.dtype)
    read = [pages[row].flatten(0, 1)[:n] for row, n in zip(table, lengths, strict=True)]
    block = made(LatentBlock.of(any_c, *weights))
    found = block(x, pages, Reads(lengths=lengths, block_table=table, extent=48), 2)
    assert_near(found, attended(x, weights, read))


@examples(15)
@given(rows=st.sampled_from([1, 3, 5, BFLOAT16_ROWS]), threads=THREADS)
def test_mlp(any_c: Library, rows: int, threads: int) -> None:
    weights, x = mlp_weights(any_c.dtype), noise(rows, WIDTH, seed=8, dtype=any_c.dtype)
    up, down, up_bias, down_bias = (w.double() for w in weights)
    block = made(MLPBlock.of(any_c, *weights))
    with threads_of(threads):
        found = block(x)
    assert_near(found, F.gelu(x.double() @ up.T + up_bias) @ down.T + down_bias)
    if any_c.dtype == torch.float32:
        other = made(MLPBlock.of(any_c, *halves_of(weights)))
        with threads_of(threads):
            assert torch.equal(other(x), found)


def test_gelu_far_from_zero(any_c: Library) -> None:
    """Of numbers from -30 to 30, and NaN stays NaN."""
    one, zeros = torch.eye(WIDTH).to(any_c.dtype), torch.zeros(WIDTH).to(any_c.dtype)
    block = made(MLPBlock.of(any_c, one, one, zeros, zeros))
    x = torch.linspace(-30, 30, 4 * WIDTH).view(4, WIDTH).to(any_c.dtype)
    found, off = made(block(x)), 1e-5 if any_c.dtype == torch.float32 else 0.01
    torch.testing.assert_close(found.double(), F.gelu(x.double()), atol=off, rtol=off)
    x[1, 5] = torch.nan
    spoiled = made(block(x))
    assert torch.isnan(spoiled).any(1).tolist() == [False, True, False, False]
    assert torch.isnan(spoiled[1]).all()


@examples(15)
@given(rows=st.sampled_from([1, 2, 7, 40]), threads=THREADS)
def test_norm_of_a_sum(any_c: Library, rows: int, threads: int) -> None:
    x, addend = (noise(rows, WIDTH, seed=i, dtype=any_c.dtype) * 3 + 5 for i in (0, 1))
    weight, bias = noise(WIDTH, seed=2), noise(WIDTH, seed=3)
    cache = noise(50, 4, WIDTH, dtype=any_c.dtype)
    ids, positions = torch.randperm(50)[:rows], torch.arange(rows) % 4
    before, expected = cache.clone(), (x + addend).double()
    with threads_of(threads):
        write = CacheWrite(Latent(cache), ids, positions)
        total, normed = made(any_c.add_norm(x, addend, weight, bias, write))
    assert total.data_ptr() == addend.data_ptr(), "no copy"
    assert torch.equal(total.double(), expected)
    assert_near(normed, F.layer_norm(expected, (WIDTH,), weight.double(), bias.double()))
    before[ids, positions] = normed
    assert torch.equal(cache, before)
    alone = made(any_c.add_norm(total, None, weight, bias))
    assert alone[0] is total and torch.equal(alone[1], normed)


def test_what_they_leave(any_c: Library) -> None:
    dtype = any_c.dtype
    weights, x, z = latent_weights(dtype), noise(1, 1, WIDTH).to(dtype), noise(1, 9, WIDTH)
    block = made(LatentBlock.of(any_c, *weights))
    assert block(x, z.double(), ALL, 1) is None and block(x.double(), z.to(dtype), ALL, 1) is None
    if dtype == torch.bfloat16:
        assert block(noise(BFLOAT16_ROWS + 1, 1, WIDTH).to(dtype), z.to(dtype), ALL, 1) is None
    else:
        halves = halves_of(weights)
        assert LatentBlock.of(any_c, *halves[:3], *weights[3:]) is None, "of both kinds"
        assert LatentBlock.of(any_c, *(w.half() for w in weights)) is None, "biases are in float32"
    with FlopCounterMode(display=False):
        assert block(x, z.to(dtype), ALL, 1) is None
        assert any_c.add_norm(x[0], None, noise(WIDTH), noise(WIDTH)) is None
    assert LatentBlock.of(None, *weights) is None
    assert LatentBlock.of(any_c, weights[0], None, *weights[2:]) is None, "a form without a map"
    narrow = (w[..., :40].contiguous() for w in weights)
    assert LatentBlock.of(any_c, *narrow) is None, "no multiple"


def test_a_step_calls_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six calls of C a layer, one norm, and the logits."""
    model, calls = random_model(forms=("e", "x")), Counter[str]()
    compiled = model.plan.kernels.library
    assert compiled is not None
    for name, run in list(compiled.functions.items()):

        def call(*arguments: object, name: str = name, run=run) -> None:  # type: ignore[no-untyped-def]
            calls[name] += 1
            run(*arguments)

        monkeypatch.setitem(compiled.functions, name, call)
    steps, step = list[Counter[str]](), model.decoder.step

    def counted(*arguments: object) -> Tensor:
        calls.clear()
        logits: Tensor = step(*arguments)  # type: ignore[arg-type]
        steps.append(Counter(calls))
        return logits

    monkeypatch.setattr(model.decoder, "step", counted)
    decode(model, windows(2), 2)
    layers = model.dims.n_text_layer
    expected = {"latent_block": 2 * layers, "mlp": layers, "add_norm": 3 * layers + 1}
    assert steps and all(found == expected | {"multiply_rows": 1} for found in steps)
