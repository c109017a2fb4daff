"""Form `zack`: ranks and rotations against the paper, attention against a slow reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.activations import Activations
from slimwhisper.cache.approximate.zack_ranks import ZackSettings, ranks
from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.forms import settings_of
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.model.calibration import exact_plan, site_name
from tests.cache.test_caches import noise, weights
from tests.support import formulas
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.steps import self_step, steps_without_values
from tests.support.windows import CPU
from tests.support.zack_formulas import attend_zack, decompose, rank_of

WIDTH, HEADS, FRAMES, LENGTH, LAYERS = 96, 3, 50, 20, 2
D_K = WIDTH // HEADS
DIMS = tiny_dims(
    width=WIDTH, heads=HEADS, text_layers=LAYERS, multilingual=False, n_text_ctx=LENGTH
)
STATE = random_state(DIMS, seed=0)
for name, tensor in STATE.items():  # head i's columns fall to 10^-i of the first
    if name.startswith("decoder") and name.endswith(("query.weight", "key.weight", "value.weight")):
        falls = [torch.logspace(0, -i, D_K) for i in range(HEADS)]
        STATE[name] = tensor * torch.cat(falls)[:, None]
KINDS = {"cross": "cross_attn", "self": "attn"}


RECORDED = Activations(
    noise(FRAMES, WIDTH, seed=1),
    [noise(40, WIDTH, seed=2 + i) for i in range(LAYERS)],
    [noise(40, WIDTH, seed=8 + i) for i in range(LAYERS)],
)


def plan(form: str, learned: CachePlan | None = None) -> CachePlan:
    """In float64, not rounded; `learned`: what another plan has learned, instead of learning."""
    if learned is None:
        return exact_plan(STATE, DIMS, form, form, RECORDED)
    found = {
        site_name(attention, i): folded.learned
        for attention, weights in (("cross", learned.cross), ("self", learned.self_))
        for i, folded in enumerate(weights)
    }
    return exact_plan(STATE, DIMS, form, form, None, found)


def allocate(made: CachePlan, slots: int, dtype: torch.dtype = torch.float64) -> DecoderCache:
    return DecoderCache.allocate(made.to(CPU, dtype), slots, FRAMES, LENGTH)


def plain(attention: str, layer: int) -> formulas.PlainAttention:
    return weights(KINDS[attention], layer, STATE)


def reference(attention: str, layer: int, sizes: Tensor) -> list[tuple[Tensor, Tensor]]:
    """R and R_v of every head, cut to the ranks `sizes` [2, h]."""
    found = decompose(
        plain(attention, layer),
        RECORDED.queries(attention, layer).double(),
        RECORDED.of(attention, layer).double(),
    )
    (keys, values) = sizes.long().tolist()
    return [
        (head[0][0][:, :r], head[1][0][:, :r_v])
        for head, r, r_v in zip(found, keys, values, strict=True)
    ]


SPECS = ["zack:removal=0.2,multiple=4", "zack:keep=0.4,multiple=8", "zack:rank=7,multiple=1"]


@pytest.mark.parametrize("spec", SPECS)
def test_cross_attention_is_the_papers(spec: str) -> None:
    made, features, x = plan(spec), noise(2, FRAMES, WIDTH, seed=2), noise(2, 5, WIDTH, seed=3)
    cache = allocate(made, 2)
    cache.cross.put(torch.arange(2), features)
    for layer, folded in enumerate(made.cross):
        p = plain("cross", layer)
        rotations = reference("cross", layer, folded.learned["ranks"])
        for tokens in (x, x[:, :1]):
            found = cache.cross.layers[layer].attend(tokens, Rows.block(2))
            for row in range(2):
                expected = attend_zack(p, rotations, tokens[row], features[row])
                torch.testing.assert_close(found[row], expected)
        heads = torch.tensor([2, 0])
        scores = cache.cross.layers[layer].scores(x, Rows.block(2), heads)
        for place, head in enumerate(heads.tolist()):
            columns = slice(head * D_K, (head + 1) * D_K)
            turned = rotations[head][0] @ rotations[head][0].T
            q, k = x[1] @ p.w_q[:, columns] + p.b_q[columns], features[1] @ p.w_k[:, columns]
            torch.testing.assert_close(scores[1, place], q @ turned @ k.T * D_K**-0.5)


@pytest.mark.parametrize("spec", SPECS)
def test_self_attention_is_the_papers(spec: str) -> None:
    """A prompt of three tokens, then three steps."""
    made, text = plan(spec), noise(6, WIDTH, seed=4)
    cache, hidden = allocate(made, 2), torch.ones(6, 6, dtype=torch.bool).triu(1)
    for layer, folded in enumerate(made.self_):
        own, rows = cache.self_.layers[layer], Rows.block(2)
        found = [*own.prefill(text[:3].expand(2, 3, WIDTH), rows)[1]]
        for n in range(3, 6):
            step = Step.at(rows, torch.full((2,), n), n + 1, n == 4, torch.float64)
            found.append(self_step(own, text[n].expand(2, 1, WIDTH), step)[1, 0])
        rotations = reference("self", layer, folded.learned["ranks"])
        expected = attend_zack(plain("self", layer), rotations, text, text, hidden)
        torch.testing.assert_close(torch.stack(found), expected)


@pytest.mark.parametrize("form", ["zack:removal=0", "zack:keep=1", "zack:rank=64"])
def test_full_rank_is_exact(form: str) -> None:
    made, features, x = plan(form), noise(2, FRAMES, WIDTH, seed=2), noise(2, 1, WIDTH, seed=3)
    assert all((w.learned["ranks"] == D_K).all() for w in (*made.cross, *made.self_))
    found = []
    for cache in (allocate(made, 2), allocate(exact_plan(STATE, DIMS, "kv", "kv"), 2)):
        cache.cross.put(torch.arange(2), features)
        found.append([layer.attend(x, Rows.block(2)) for layer in cache.cross.layers])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


def singular(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("removal", "expected"), [(0.0, 4), (0.09, 4), (0.1, 3), (0.29, 3), (0.3, 2), (0.6, 1)]
)
def test_equation_6(removal: float, expected: int) -> None:
    """Of 4, 3, 2, 1 the last is a tenth, the last two three tenths, the last three six tenths."""
    settings = ZackSettings(removal=removal, multiple=1)
    assert rank_of([4, 3, 2, 1], removal) == expected
    assert ranks(settings, singular([4, 3, 2, 1])).tolist() == [expected]


def test_adaptive_ranks_equal_equation_6() -> None:
    """Of every head, layer and matrix, rounded up."""
    for attention in ("cross", "self"):
        made = plan("zack:removal=0.1,multiple=4")
        weights = made.cross if attention == "cross" else made.self_
        for layer, folded in enumerate(weights):
            found = decompose(
                plain(attention, layer),
                RECORDED.queries(attention, layer).double(),
                RECORDED.of(attention, layer).double(),
            )
            for head, parts in enumerate(found):
                for row, (_, values) in enumerate(parts):
                    rank = rank_of(values.tolist(), 0.1)
                    assert folded.learned["ranks"][row, head] == min(-(-rank // 4) * 4, D_K)


def test_ranks_are_rounded_up() -> None:
    falling = torch.linspace(1, 0.1, 64, dtype=torch.float64).expand(2, 3, 64)
    for rank, expected in ((1, 16), (16, 16), (17, 32), (63, 64), (99, 64)):
        assert (ranks(ZackSettings(rank=rank), falling) == expected).all()
    assert (ranks(ZackSettings(rank=17), falling[..., :24]) == 24).all()  # no more than d_k
    assert (ranks(ZackSettings(rank=5), falling[..., :8]) == 5).all()  # narrower than 16
    assert ranks(ZackSettings(removal=0.999), falling).min() == 16  # no head without columns
    assert (ranks(ZackSettings(removal=0.5), torch.zeros(2, 64)) == 16).all()


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("width", "multiple"), [(64, 16), (64, 1), (24, 16)])
def test_keep_is_the_share_of_all_values(keep: float, width: int, multiple: int) -> None:
    """To within one block, over all layers, matrices and heads."""
    spectra = noise(4, 2, 6, width, seed=5).abs().sort(dim=-1, descending=True).values
    spectra = spectra ** torch.linspace(0.2, 3, 6, dtype=torch.float64)[:, None]
    found = ranks(ZackSettings(keep=keep, multiple=multiple), spectra)
    least, total = found.numel() * min(multiple, width), found.numel() * width
    room = max(keep * total, least)
    assert room - multiple < found.sum() <= room + 1e-6
    if keep in (0.3, 0.5) and width == 64:
        assert len(found.unique()) > 1  # more where the values fall slowly
        assert found[:, :, 0].sum() > found[:, :, -1].sum()


def test_one_threshold_for_all_heads() -> None:
    """What is kept carries a larger share of its head than whatever is dropped."""
    spectra = noise(2, 2, 3, 32, seed=6).abs().sort(dim=-1, descending=True).values
    found = ranks(ZackSettings(keep=0.5, multiple=1), spectra)
    shares, places = spectra / spectra.sum(dim=-1, keepdim=True), torch.arange(32)
    kept = places < found[..., None]
    assert shares[kept & (places > 0)].min() >= shares[~kept].max()


def test_uneven_ranks_are_not_padded() -> None:
    """The caches hold exactly as many values as the ranks say."""
    slots, made = 3, plan("zack:keep=0.5,multiple=4")
    cache = allocate(made, slots)
    sizes = [
        sum(int(w.learned["ranks"].sum()) for w in weights) for weights in (made.cross, made.self_)
    ]
    assert len(made.cross[0].learned["ranks"].unique()) > 1
    assert cache.cross.nbytes() == 8 * slots * FRAMES * sizes[0]
    assert cache.self_.nbytes() == 8 * slots * LENGTH * sizes[1]
    half = 2 * LAYERS * WIDTH / 2  # of the keys and values of all layers
    assert all(half - 4 < size <= half for size in sizes)
    for layer, folded in zip(cache.cross.layers, made.cross, strict=True):
        assert layer.read_bytes(0) == 8 * FRAMES * folded.learned["ranks"].sum()


def test_what_was_learned_before_is_used() -> None:
    one = plan("zack:removal=0.2,multiple=4")
    other = plan("zack:removal=0.2,multiple=4", learned=one)
    for ours, again in zip((*one.cross, *one.self_), (*other.cross, *other.self_), strict=True):
        assert all(t.dtype == torch.float64 for t in again.learned.values())
        for name in ("query", "query_bias", "project", "values", "out", "out_bias"):
            assert torch.equal(getattr(ours, name), getattr(again, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    made, features, x = (
        plan("zack:keep=0.5,multiple=4"),
        noise(2, FRAMES, WIDTH),
        noise(2, 3, WIDTH),
    )
    found = []
    for kind in (dtype, torch.float64):
        cache, rows = allocate(made, 2, kind), Rows.block(2)
        cache.cross.put(torch.arange(2), features.to(kind))
        own = cache.self_.layers[0]
        own.prefill(x.to(kind), rows)
        step = Step.at(rows, torch.tensor([3, 2]), 4, False, kind)
        found.append(
            [
                cache.cross.layers[0].attend(x.to(kind), rows).double(),
                self_step(own, x[:, :1].to(kind), step).double(),
            ]
        )
    tolerance = 50 * torch.finfo(dtype).eps
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < tolerance * exact.norm()


def test_a_step_reads_nothing_on_the_host() -> None:
    """It runs where tensors have no values, so it can be captured as a CUDA graph."""
    steps_without_values(plan("zack:keep=0.5,multiple=4"), FRAMES, LENGTH)


def test_fewer_activations_than_columns() -> None:
    """The rotations are still whole."""
    few = Activations(
        RECORDED.features[:5], [t[:5] for t in RECORDED.self_], [t[:5] for t in RECORDED.asking]
    )
    for folded in exact_plan(STATE, DIMS, "zack:removal=0", "zack:rank=32", few).self_:
        for name in ("keys", "values"):
            for r in folded.learned[name].split(D_K, dim=1):
                torch.testing.assert_close(r.T @ r, torch.eye(D_K, dtype=torch.float64))


def test_settings() -> None:
    assert settings_of("zack") == ZackSettings(removal=0.05)
    assert settings_of("zack:rank=16") == replace(ZackSettings(rank=16), multiple=16)
    assert settings_of("zack:keep=0.5").removal is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"removal": 0.1, "rank": 8}, "removal=0.1 and rank=8: give one of"),
        ({"removal": 1.0}, "removal=1.0: give 0"),
        ({"keep": 0.0}, "keep=0.0: give a share"),
        ({"rank": 0}, "rank=0: give at least 1"),
        ({"multiple": 0}, "multiple=0: give at least 1"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ZackSettings(**values)
