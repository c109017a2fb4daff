"""A decoder layer's blocks in C against float64, and that a step calls nothing else of C."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.kernels.attention import ALL, CacheWrite, Latent, Reads
from slimwhisper.kernels.blocks import LatentBlock, MLPBlock
from slimwhisper.kernels.cpu.library import BFLOAT16_ROWS, Library, library
from tests.support.windows import decode, random_model, windows

HEADS, SIZE, WIDTH, WIDE = 3, 32, 96, 160
pytestmark = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def c(any_c: Library) -> Library:
    return any_c


def assert_near(found: Tensor | None, exact: Tensor) -> None:
    """In float32 within 2e-5; in bfloat16 each part is rounded."""
    assert found is not None
    off = 2e-5 if found.dtype == torch.float32 else 0.03
    torch.testing.assert_close(found.double(), exact, atol=off, rtol=off)


def latent_weights(dtype: torch.dtype) -> list[Tensor]:
    """query, key_map, value_map, out, and the biases of query and out."""
    square, maps = (WIDTH, WIDTH), (HEADS, SIZE, WIDTH)
    shapes = (square, maps, maps, square, (WIDTH,), (WIDTH,))
    scaled = (noise(*shape, seed=i) / 10 for i, shape in enumerate(shapes))
    return [t.to(dtype) for t in scaled]


def attended(x: Tensor, weights: list[Tensor], latents: list[Tensor]) -> Tensor:
    """From the definition, in float64: x [R, d], the latent [T, d] of each row -> [R, d]."""
    query, key_map, value_map, out, query_bias, out_bias = (w.double() for w in weights)
    results = []
    for row, latent in zip(x.double(), latents, strict=True):
        z = latent.double()
        q = (query @ row + query_bias).view(HEADS, SIZE)
        scores = torch.einsum("hk,hkd,td->ht", q, key_map, z) * SIZE**-0.5
        mixed = torch.einsum("hkd,ht,td->hk", value_map, scores.softmax(-1), z)
        results.append(out @ mixed.flatten() + out_bias)
    return torch.stack(results)


@pytest.mark.parametrize(("windows", "group"), [(1, 1), (2, 3), (5, 1)])
def test_attention_to_slots(c: Library, threads: int, windows: int, group: int) -> None:
    """Of any windows, with lengths, and several rows of each; what is past them is never read."""
    weights, latent = latent_weights(c.dtype), noise(7, 130, WIDTH, seed=9).to(c.dtype)
    slots, lengths = torch.arange(windows).flip(0) + 2, 7 * torch.arange(windows) + 90
    expected = latent.clone()
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        latent[slot, length:] = torch.nan
    x = noise(windows * group, 1, WIDTH, seed=8).to(c.dtype)
    block = LatentBlock.of(c, *weights)
    assert block is not None
    found = block(x, latent, Reads(slots, lengths), windows)
    read = [expected[s, :n] for s, n in zip(slots, lengths, strict=True) for _ in range(group)]
    assert_near(found, attended(x[:, 0], weights, read).unsqueeze(1))
    whole = block(x, expected[:windows], ALL, windows)
    read = [z for z in expected[:windows] for _ in range(group)]
    assert_near(whole, attended(x[:, 0], weights, read).unsqueeze(1))


def test_attention_to_pages(c: Library, threads: int) -> None:
    weights, pages = latent_weights(c.dtype), noise(9, 16, WIDTH, seed=9).to(c.dtype)
    table, lengths = torch.tensor([[7, 1, 4], [0, 8, 2]]), torch.tensor([33, 48])
    x = noise(2, 1, WIDTH, seed=8).to(c.dtype)
    read = [pages[row].flatten(0, 1)[:n] for row, n in zip(table, lengths, strict=True)]
    block = LatentBlock.of(c, *weights)
    assert block is not None
    found = block(x, pages, Reads(lengths=lengths, block_table=table, extent=48), 2)
    assert_near(found, attended(x[:, 0], weights, read).unsqueeze(1))


@pytest.mark.parametrize("rows", [1, 5, BFLOAT16_ROWS])
def test_mlp(c: Library, threads: int, rows: int) -> None:
    shapes = ((WIDE, WIDTH), (WIDTH, WIDE), (WIDE,), (WIDTH,))
    weights = [(noise(*s, seed=i) / 5).to(c.dtype) for i, s in enumerate(shapes)]
    x = noise(rows, WIDTH, seed=8).to(c.dtype)
    up, down, up_bias, down_bias = (w.double() for w in weights)
    block = MLPBlock.of(c, *weights)
    assert block is not None
    expected = F.gelu(x.double() @ up.T + up_bias) @ down.T + down_bias
    assert_near(block(x), expected)


def test_gelu_far_from_zero(c: Library) -> None:
    """Of numbers from -30 to 30, and NaN stays NaN."""
    one = torch.eye(WIDTH).to(c.dtype)
    zeros = torch.zeros(WIDTH).to(c.dtype)
    block = MLPBlock.of(c, one, one, zeros, zeros)
    x = torch.linspace(-30, 30, 4 * WIDTH).view(4, WIDTH).to(c.dtype)
    assert block is not None
    found, off = block(x), 1e-5 if c.dtype == torch.float32 else 0.01
    assert found is not None
    torch.testing.assert_close(found.double(), F.gelu(x.double()), atol=off, rtol=off)
    x[1, 5] = torch.nan
    spoiled = block(x)
    assert (
        spoiled is not None and torch.isnan(spoiled[1]).all() and not torch.isnan(spoiled[2]).any()
    )


@pytest.mark.parametrize("rows", [1, 40])
def test_norm_of_a_sum(c: Library, threads: int, rows: int) -> None:
    x, addend = (noise(rows, WIDTH, seed=i).to(c.dtype) * 3 + 5 for i in (0, 1))
    weight, bias, cache = (
        noise(WIDTH, seed=2),
        noise(WIDTH, seed=3),
        noise(50, 4, WIDTH).to(c.dtype),
    )
    ids, positions = torch.randperm(50)[:rows], torch.arange(rows) % 4
    before, expected = cache.clone(), (x + addend).double()
    found = c.add_norm(x, addend, weight, bias, CacheWrite(Latent(cache), ids, positions))
    assert found is not None
    total, normed = found
    assert total.data_ptr() == addend.data_ptr(), "no copy"
    assert torch.equal(total.double(), expected)
    expected = F.layer_norm(expected, (WIDTH,), weight.double(), bias.double())
    assert_near(normed, expected)
    before[ids, positions] = normed
    assert torch.equal(cache, before)
    alone = c.add_norm(total, None, weight, bias)
    assert alone is not None and alone[0] is total and torch.equal(alone[1], normed)


def test_what_they_leave(c: Library) -> None:
    weights, x, z = latent_weights(c.dtype), noise(1, 1, WIDTH).to(c.dtype), noise(1, 9, WIDTH)
    block = LatentBlock.of(c, *weights)
    assert block is not None
    assert block(x, z.double(), ALL, 1) is None and block(x.double(), z.to(c.dtype), ALL, 1) is None
    if c.dtype == torch.bfloat16:
        many = noise(BFLOAT16_ROWS + 1, 1, WIDTH).to(c.dtype)
        assert block(many, z.to(c.dtype), ALL, 1) is None
    with FlopCounterMode(display=False):
        assert block(x, z.to(c.dtype), ALL, 1) is None
        assert c.add_norm(x[0], None, noise(WIDTH), noise(WIDTH)) is None
    assert LatentBlock.of(None, *weights) is None
    assert LatentBlock.of(c, weights[0], None, *weights[2:]) is None, "a form without a map"
    assert LatentBlock.of(c, *(w[..., :40].contiguous() for w in weights)) is None, "no multiple"


def test_a_step_calls_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six calls of C a layer, one norm, and the logits."""
    model, calls = random_model(forms=("e", "x")), Counter[str]()
    compiled = model.plan.kernels.library
    assert compiled is not None

    def spy(name: str) -> None:
        run = compiled.functions[name]

        def call(*arguments: object) -> None:
            calls[name] += 1
            run(*arguments)

        monkeypatch.setitem(compiled.functions, name, call)

    steps: list[Counter[str]] = []
    step = model.decoder.step

    def counted(*arguments: object) -> Tensor:
        calls.clear()
        logits: Tensor = step(*arguments)  # type: ignore[arg-type]
        steps.append(Counter(calls))
        return logits

    monkeypatch.setattr(model.decoder, "step", counted)
    for name in list(compiled.functions):
        spy(name)
    decode(model, windows(2), 2)
    layers = model.dims.n_text_layer
    expected = {"latent_block": 2 * layers, "mlp": layers, "add_norm": 3 * layers + 1}
    assert steps and all(found == expected | {"multiply_rows": 1} for found in steps)
