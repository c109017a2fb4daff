"""What one approximate form has alone: its choices, ranks and settings, and whole texts."""

import math

import pytest
import torch

import slimwhisper
from slimwhisper.cache.base import Rows
from slimwhisper.research.forms.compact import Compact, merge_neighbours
from slimwhisper.research.forms.keyformer import gumbel
from slimwhisper.research.forms.zack import Zack, ranks, spectrum
from tests.support import papers
from tests.support.cache_forms import (
    D_K,
    FRAMES,
    HEADS,
    LENGTH,
    RECORDED,
    WIDTH,
    allocate,
    block,
    noise,
    plain,
    ranks_of,
    run_text,
)
from tests.support.paths import SAMPLES


def test_gumbel_noise() -> None:
    """Its mean is Euler's constant and its variance pi^2 / 6; seeds and layers have their own."""
    many = gumbel(0, 0, 4, 50_000)
    assert float(many.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(many.var()) == pytest.approx(math.pi**2 / 6, rel=0.02)
    assert float((torch.corrcoef(many) - torch.eye(4)).abs().max()) < 0.02
    assert len({float(gumbel(s, i, 1, 1)) for s in range(3) for i in range(3)}) == 9


def test_float8_is_that_of_the_exact_forms() -> None:
    features, x, text = (noise(*n, WIDTH, seed=2) for n in ((3, FRAMES), (3, 1), (9,)))
    results = []
    for form in ("compact:float8=true", "e8"):
        cache = allocate(form, "x")
        cache.cross.put(torch.arange(3), features)
        results.append(cache.cross.layers[1].attend(x, Rows.block(3)))
    assert torch.equal(*results)
    rounded, exact = (
        run_text(allocate("e", f"keyformer_latent:budget=6,recent=1{f}").self_.layers[1], text, 5)
        for f in (",float8=true", "")
    )
    assert 1e-5 < (rounded - exact).norm() / exact.norm() < 0.05


def test_equal_costs_fall_from_the_left() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        means, sizes, _ = merge_neighbours(torch.ones(1, 8, 4, dtype=dtype), 6)
        assert sizes[0].tolist() == [3, 1, 1, 1, 1, 1] and (means == 1).all()
        assert means.dtype == torch.float32


@pytest.mark.parametrize("part", ["cross", "self"])
def test_zacks_ranks_are_equation_6(part: str) -> None:
    """Of every head, layer and matrix, rounded up; the buffers hold that many values."""
    assert [papers.rank_of([4, 3, 2, 1], share) for share in (0, 0.09, 0.1, 0.3, 0.6)] == [
        *(4, 4, 3, 2, 1)
    ]
    spec, total = "zack:removal=0.1,multiple=4", 0
    for layer, chosen in enumerate(ranks_of(part, spec)):
        queries, source = RECORDED.query_inputs(part, layer), RECORDED.source(part, layer)
        heads = papers.decompose(plain(part, layer), queries.double(), source.double())
        for head, parts in enumerate(heads):
            for row, (_, values) in enumerate(parts):
                rank = papers.rank_of(values.tolist(), 0.1)
                assert chosen[row, head] == min(-(-rank // 4) * 4, D_K)
        total += int(chosen.sum())
        assert len(chosen.unique()) > 1
    cache = allocate(spec, spec)
    tokens = cache.cross.nbytes() / FRAMES if part == "cross" else cache.self_.nbytes() / LENGTH
    assert tokens == 8 * 3 * total


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("width", "multiple"), [(64, 16), (64, 1), (24, 16)])
def test_zacks_keep_is_one_removal_for_all(keep: float, width: int, multiple: int) -> None:
    """The smallest that leaves no more than this share: a little less would leave too much."""
    spectra = noise(4, 2, 6, width, seed=5).abs().sort(dim=-1, descending=True).values
    spectra = spectra ** torch.linspace(0.2, 3, 6, dtype=torch.float64)[:, None]
    chosen = ranks(Zack(keep=keep, multiple=multiple), spectra)
    assert chosen.sum() <= max(keep * chosen.numel() * width, chosen.numel() * min(multiple, width))
    others = [
        ranks(Zack(removal=float(share), multiple=multiple), spectra)
        for share in torch.linspace(0, 0.999, 500, dtype=torch.float64)
    ]
    fitting = [r for r in others if r.sum() <= keep * r.numel() * width]
    assert not fitting or chosen.sum() >= max(r.sum() for r in fitting)


def test_zacks_edges() -> None:
    """Ranks are rounded up; rotations are whole, also of fewer activations than columns."""
    falling = torch.linspace(1, 0.1, 64, dtype=torch.float64).expand(2, 3, 64)
    for rank, expected in ((1, 16), (17, 32), (63, 64), (99, 64)):
        assert (ranks(Zack(rank=rank), falling) == expected).all()
    assert (ranks(Zack(rank=5), falling[..., :8]) == 5).all()  # narrower than 16
    x = RECORDED.features[:5]
    for r in spectrum(block("self", 0), x, x)[0].flatten(0, 1):
        torch.testing.assert_close(r.T @ r, torch.eye(D_K, dtype=torch.float64))


def test_sparse_counts_the_rows_that_it_read() -> None:
    cache, features = allocate("sparse:threshold=0.04", "x"), noise(3, FRAMES, WIDTH, seed=2)
    cache.cross.put(torch.arange(3), features)
    layer, x = cache.cross.layers[1], noise(3, 1, WIDTH, seed=3)
    keys = 8 * FRAMES * WIDTH
    assert layer.read_bytes(1) == 2 * keys  # nothing is known yet
    layer.step(x, Rows.block(3))
    read = sum(
        papers.attend_sparse(plain("cross", 1), x[i, 0], features[i], 0.04)[1] for i in range(3)
    )
    assert 0 < read < 3 * HEADS * FRAMES
    assert layer.read_bytes(1) == pytest.approx(keys * (1 + read / (3 * HEADS * FRAMES)))


def test_frames_that_remain() -> None:
    assert [Compact(m).groups(1500) for m in (1, 0.5, 0.07, 0.0001)] == [1500, 750, 105, 1]


def test_words_are_where_they_were() -> None:
    """The bundled model: the same words at the same times, within a tenth of a second."""
    results = []
    for cross in ("e", "compact:merge=0.5,float8=true"):
        model = slimwhisper.load_model("digits", cross_cache=cross, audio_window="full")
        result = model.transcribe(str(SAMPLES / "phone-number.wav"), word_timestamps=True)
        results.append([w for s in result["segments"] for w in s["words"]])
    assert [w["word"] for w in results[0]] == [w["word"] for w in results[1]]
    for exact, ours in zip(*results, strict=True):
        assert abs(exact["start"] - ours["start"]) <= 0.1 and abs(exact["end"] - ours["end"]) <= 0.1
