"""Form `compact` against its definitions, in float64: merging, the basis, float8, and together."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import slimwhisper
from slimwhisper.cache.approximate.basis import importance, learn_basis, moments
from slimwhisper.cache.approximate.compact import Compact
from slimwhisper.cache.approximate.neighbours import SHARE, merge_neighbours, rounds
from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.fold import Attention, Context, fold
from slimwhisper.cache.forms import choose_forms
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.errors import OptionError
from slimwhisper.model.calibration import exact_plan, record_activations
from tests.cache.test_approximate import DIMS, FRAMES, HEADS, LENGTH, STATE, WIDTH
from tests.cache.test_caches import noise
from tests.support.compact import groups_of, output_change, replaced, shrunk
from tests.support.formulas import PlainAttention, attend_x
from tests.support.paths import SAMPLES
from tests.support.steps import self_step
from tests.support.windows import CPU

SEEN = record_activations(Checkpoint("random", DIMS, STATE))
HEAD = WIDTH // HEADS


def block(name: str, layer: int) -> Attention:
    found = Attention.from_state(STATE, f"decoder.blocks.{layer}.{name}.", HEADS)
    tensors = ("query", "query_bias", "key", "value", "out", "out_bias")
    return replace(found, **{n: getattr(found, n).double() for n in tensors})


def plain(name: str, layer: int) -> PlainAttention:
    """The same for row vectors; the value bias is in the output's already."""
    b = block(name, layer)
    none = torch.zeros(WIDTH, dtype=torch.float64)
    return PlainAttention(
        b.query.T, b.query_bias, b.key.T, b.value.T, none, b.out.T, b.out_bias, HEADS
    )


def plan(cross: str = "e", own: str = "x") -> CachePlan:
    return exact_plan(STATE, DIMS, cross, own, SEEN)


def allocate(
    cross: str = "e", own: str = "x", slots: int = 3, dtype: torch.dtype = torch.float64
) -> DecoderCache:
    return DecoderCache.allocate(plan(cross, own).to(CPU, dtype), slots, FRAMES, LENGTH)


def sound(seed: int = 2, windows: int = 3) -> Tensor:
    """[G, p, d] that changes slowly in the middle and hardly at the end."""
    steps = noise(windows, FRAMES, WIDTH, seed=seed)
    steps[:, 20:35] *= 0.3
    steps[:, 36:] *= 0.01
    return steps.cumsum(dim=1) / 3


def basis_of(rank: int) -> dict[str, Tensor]:
    blocks = [block("cross_attn", i) for i in range(2)]
    return learn_basis(blocks, SEEN.asking, SEEN.features, rank)


def what_is_left(x: Tensor, groups: int, basis: Mapping[str, Tensor]) -> Tensor:
    """A window [p, d] as `compact` reads it, [p, d]."""
    mean = basis["mean"]
    z = (x - mean) @ basis["encode"].T
    return mean + replaced(z, groups_of(z, groups)) @ basis["decode"].T


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


# -- merging -----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 7, 25, 44, 49, 50])
def test_groups_are_those_of_the_definition(groups: int) -> None:
    x = sound()
    means, sizes, group_of = merge_neighbours(x, groups)
    for window, plainly in enumerate(groups_of(w, groups) for w in x):
        assert sizes[window].tolist() == [len(members) for members in plainly]
        expected = [g for g, members in enumerate(plainly) for _ in members]
        assert group_of[window].tolist() == expected
        torch.testing.assert_close(means[window][expected], replaced(x[window], plainly))


def test_the_rounds() -> None:
    assert list(rounds(1500, 750)) == [1312, 1148, 1004, 878, 768, 750]
    for frames, groups in ((1500, 1), (50, 49), (3, 3)):
        counts = [frames, *rounds(frames, groups)]
        assert counts[-1] == groups and all(a > b for a, b in itertools.pairwise(counts))
        assert all(b >= a - -(-a // SHARE) for a, b in itertools.pairwise(counts))


def test_silence_becomes_little() -> None:
    """And each window is merged by itself, whatever is merged beside it."""
    x = sound()
    _, sizes, group_of = merge_neighbours(x, 25)
    assert (group_of[:, -1] - group_of[:, 36] <= 1).all()
    for window in range(3):
        alone = merge_neighbours(x[window : window + 1], 25)
        assert torch.equal(alone[1][0], sizes[window])
    # equal costs: the earlier boundaries fall, in any dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        means, sizes, _ = merge_neighbours(torch.ones(1, 8, 4, dtype=dtype), 6)
        assert sizes[0].tolist() == [3, 1, 1, 1, 1, 1] and (means == 1).all()
        assert means.dtype == torch.float32


@pytest.mark.parametrize("merge", [0.5, 0.75, 0.99])
def test_frames_that_are_equal_lose_nothing(merge: float) -> None:
    """Pairs of equal frames, and one run of ten: exact at any share from the distinct ones on."""
    features = noise(3, FRAMES // 2, WIDTH, seed=2).repeat_interleave(2, dim=1)
    features[1, 10:20] = features[1, 10]
    x, heads = noise(3, 2, WIDTH, seed=3), torch.tensor([2, 0])
    found = []
    for form in (f"compact:merge={merge}", "e"):
        cross = allocate(form).cross
        cross.put(torch.arange(3), features)
        layer = cross.layers[1]
        rows = Rows.block(3)
        scattered = Rows.of(rows.ids, torch.tensor([2, 0, 1]))
        found.append([layer.attend(x, rows), layer.attend(x, scattered)])
        found[-1].append(layer.scores(x, scattered, heads))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


# -- all of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 60], ids=["step", "prompt"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("spec", ["merge=0.5", "rank=40", "merge=0.3,rank=40"])
def test_attention_to_what_is_left(spec: str, group: int, tokens: int) -> None:
    form = f"compact:{spec}"
    settings = Compact(0.5 if "0.5" in spec else 0.3 if "0.3" in spec else 1.0)
    basis = basis_of(40 if "rank" in spec else WIDTH)
    cache = DecoderCache.allocate(plan(form).to(CPU, torch.float64), 3, FRAMES, LENGTH, group)
    features, x = sound(), noise(3 * group, tokens, WIDTH, seed=3)
    cache.cross.put(torch.arange(3), features)
    left = [what_is_left(f, settings.groups(FRAMES), basis) for f in features]
    rows, heads = Rows.block(3, group), torch.tensor([2, 0])
    scattered = Rows.of(rows.ids, torch.tensor([2, 0, 1]).repeat(group))
    for i, layer in enumerate(cache.cross.layers):
        p = plain("cross_attn", i)
        for where in (rows, scattered):
            found, scores = layer.attend(x, where), layer.scores(x, where, heads)
            for row, slot in enumerate(where.slots.tolist()):
                torch.testing.assert_close(found[row], attend_x(p, x[row], left[slot]))
                for n, head in enumerate(heads.tolist()):
                    at = slice(head * HEAD, (head + 1) * HEAD)
                    q, keys = (x[row] @ p.w_q + p.b_q)[:, at], left[slot] @ p.w_k[:, at]
                    expected = (q @ keys.T * HEAD**-0.5).softmax(dim=-1)
                    torch.testing.assert_close(scores[row, n].softmax(dim=-1), expected)


def own(form: str, text: Tensor, prompt: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A text [T, d] through layer 1: its beginning as a prompt, the rest step by step."""
    layer = allocate("e", form, 1, dtype).self_.layers[1]
    found = [layer.prefill(text[None, :prompt].to(dtype), Rows.of(torch.tensor([0])))[0]]
    for n in range(prompt, len(text)):
        step = Step.at(Rows.block(1), torch.tensor([n]), n + 1, True, dtype)
        found.append(self_step(layer, text[None, n : n + 1].to(dtype), step)[0])
    return torch.cat(found).double()


def test_a_text_in_few_columns() -> None:
    text, p = noise(9, WIDTH, seed=4), plain("attn", 1)
    basis = learn_basis([block("attn", 1)], [SEEN.self_[1]], SEEN.self_[1], 40)
    left = basis["mean"] + (text - basis["mean"]) @ basis["encode"].T @ basis["decode"].T
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    # what asks is not reduced
    expected = p.run(
        text,
        hidden,
        lambda q, c: (
            q @ p.w_k[:, c].T @ left.T,
            lambda s: s @ left @ p.w_v[:, c],
        ),
    )
    torch.testing.assert_close(own("compact:rank=40", text, 5), expected)


@pytest.mark.parametrize("spec", ["", ",merge=0.5", ",rank=40", ",merge=0.5,rank=40"])
def test_float8_rounds_little(spec: str) -> None:
    features, x = sound(), noise(3, 1, WIDTH, seed=3)
    found = []
    for eight in ("true", "false"):
        cross = allocate(f"compact:float8={eight}{spec}").cross
        cross.put(torch.arange(3), features)
        layer = cross.layers[1]
        found.append([layer.attend(x.repeat(1, n, 1), Rows.block(3)) for n in (1, 60)])
    for ours, unrounded in zip(*found, strict=True):
        assert 1e-5 < error(ours, unrounded) < 0.05
    if "merge" not in spec:
        text = noise(9, WIDTH, seed=4)
        eight, whole = (own(f"compact:float8={e}{spec}", text, 5) for e in ("true", "false"))
        assert 1e-5 < error(eight, whole) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_in_every_dtype(dtype: torch.dtype) -> None:
    """No worse than `e` by more than a little, where both leave out the same."""
    features, x = sound().to(dtype), noise(3, 1, WIDTH, seed=3)
    epsilon = torch.finfo(dtype).eps
    for spec in ("merge=1", "merge=0.5,rank=40"):
        found = []
        for kind in (dtype, torch.float64):
            cross = allocate(f"compact:{spec}", dtype=kind).cross
            cross.put(torch.arange(3), features.to(kind))
            for tokens in (1, 60):
                asked = x.repeat(1, tokens, 1).to(dtype).to(kind)
                found.append(cross.layers[1].attend(asked, Rows.block(3)).double())
        for ours, true in zip(found[:2], found[2:], strict=True):
            assert error(ours, true) < 8 * epsilon, spec
    text = noise(9, WIDTH, seed=4).to(dtype)
    form = "compact:rank=40"
    assert error(own(form, text, 5, dtype), own(form, text.double(), 5)) < 8 * epsilon


# -- the basis ---------------------------------------------------------------------------------


def test_the_basis_costs_least() -> None:
    """Less than the principal components of the latent, and as much as the scales say."""
    blocks = [block("cross_attn", i) for i in range(2)]
    mean, covariance = shrunk(SEEN.features[::100].double())
    ours = learn_basis(blocks, SEEN.asking, SEEN.features[::100], WIDTH)
    torch.testing.assert_close(ours["mean"], mean, rtol=2**-8, atol=0.0)
    assert torch.equal(ours["mean"], ours["mean"].bfloat16().double())
    identity = torch.eye(WIDTH, dtype=torch.float64)
    asking = [shrunk(x.double()) for x in SEEN.asking]
    torch.testing.assert_close(ours["decode"] @ ours["encode"], identity)
    _, components = torch.linalg.eigh(covariance)

    def cost(left: Tensor) -> float:
        """Of keeping left @ e."""
        lost = identity - left
        return sum(
            output_change(b, asks, covariance, lost @ covariance @ lost.T)
            for b, asks in zip(blocks, asking, strict=True)
        )

    whole = cost(torch.zeros_like(identity))
    for rank in (8, 24, 60):
        decode, encode = ours["decode"][:, :rank], ours["encode"][:rank]
        found = cost(decode @ encode)
        top = components[:, -rank:]
        assert found < cost(top @ top.T)
        shares = ours["scales"].square()
        assert found / whole == pytest.approx(float(shares[rank:].sum() / shares.sum()), rel=1e-3)
        again = learn_basis(blocks, SEEN.asking, SEEN.features[::100], rank)
        torch.testing.assert_close(again["encode"], encode)
        torch.testing.assert_close(again["scales"], ours["scales"][:rank])


def test_what_a_layer_looks_at() -> None:
    asking, latents = noise(5, WIDTH, seed=1), noise(40, WIDTH, seed=2)
    for found, expected in zip(moments(asking), shrunk(asking), strict=True):
        torch.testing.assert_close(found, expected)
    _, covariance = moments(latents)
    found = importance(block("cross_attn", 1), asking, covariance)
    for seed in (3, 4):
        lost = torch.outer(v := noise(WIDTH, seed=seed), v)
        expected = output_change(block("cross_attn", 1), shrunk(asking), covariance, lost)
        assert float(v @ found @ v) == pytest.approx(expected)


def test_columns_kept_are_alike_in_float8() -> None:
    basis = basis_of(40)
    z = (SEEN.features.double() - basis["mean"]) @ basis["encode"].T
    torch.testing.assert_close(z.square().mean(dim=0).sqrt(), basis["scales"], rtol=0.5, atol=0.0)


def test_what_was_learned_serves_all_layers_and_lower_ranks() -> None:
    first = plan("compact:rank=40", "compact:rank=40")
    assert [bool(f.learned) for f in first.cross] == [True, False]
    assert [bool(f.learned) for f in first.self_] == [True, True]
    assert torch.equal(*[f.project for f in first.cross])  # type: ignore[arg-type]
    assert not torch.equal(*[f.project for f in first.self_])  # type: ignore[arg-type]
    learned = {
        f"{name}.{i}": f.learned
        for name, folds in (("cross", first.cross), ("self", first.self_))
        for i, f in enumerate(folds)
        if f.learned
    }
    again = exact_plan(STATE, DIMS, "compact:rank=24", "compact:rank=40", None, learned)
    assert first.cross[1].key_map is not None
    torch.testing.assert_close(again.cross[1].key_map, first.cross[1].key_map[..., :24])
    torch.testing.assert_close(again.self_[1].value_map, first.self_[1].value_map)
    with pytest.raises(ValueError, match=r"rank=48: 40 columns were learned; give at most 40"):
        exact_plan(STATE, DIMS, "compact:rank=48", "x", None, learned)


# -- sizes and settings ------------------------------------------------------------------------


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize(("merge", "groups"), [(1, 50), (0.5, 25), (0.33, 17), (0.001, 1)])
@pytest.mark.parametrize(("rank", "width"), [("all", WIDTH), (40, 40)])
def test_bytes(merge: float, groups: int, rank: object, width: int, eight: bool) -> None:
    spec = f"compact:merge={merge},rank={rank},float8={str(eight).lower()}"
    own_spec = f"compact:rank={rank},float8={str(eight).lower()}"
    cache = allocate(spec, own_spec, 3, torch.float16)
    position = (1 if eight else 2) * width + 4 * eight
    read = groups * (position + 4 * (groups < FRAMES))
    assert cache.cross.nbytes() == 3 * (read + 2 * FRAMES * (groups < FRAMES))
    assert all(layer.read_bytes(1) == read for layer in cache.cross.layers)
    assert cache.self_.nbytes() == 2 * 3 * LENGTH * position
    assert cache.self_.layers[0].read_bytes(1, 5) == 5 * position
    folded = plan(spec, own_spec).to(CPU, torch.float16)
    nothing = DecoderCache.allocate(folded, 3, FRAMES, LENGTH, device=torch.device("meta"))
    assert nothing.cross.nbytes() == cache.cross.nbytes()


def test_settings_that_make_no_sense() -> None:
    assert [Compact(m).groups(1500) for m in (1, 0.5, 0.07, 0.0001)] == [1500, 750, 105, 1]
    for spec, message in (
        ("merge=0", "merge=0.0: give the share to be left, above 0, at most 1"),
        ("merge=1.5", "merge=1.5: give the share to be left"),
        ("rank=0", "rank=0: give at least 1, or all"),
    ):
        with pytest.raises(OptionError, match=message):
            choose_forms(cross_cache=f"compact:{spec}")
    b = block("attn", 0)
    with pytest.raises(ValueError, match=r"^compact: rank=97: the model has 96 columns; give"):
        fold(b, "compact:rank=97", Context())
    with pytest.raises(ValueError, match=r"^compact: merge=0.5: a text's tokens are not merg"):
        fold(b, "compact:merge=0.5", Context(attention="self"))


@pytest.mark.usefixtures("numba")
def test_words_are_where_they_were() -> None:
    """The bundled model: the same words at the same times, within a tenth of a second."""
    found = []
    for cross in ("e", "compact:merge=0.5,rank=96,float8=true"):
        model = slimwhisper.load_model("digits", cross_cache=cross)
        result = model.transcribe(str(SAMPLES / "phone-number.wav"), word_timestamps=True)
        found.append([w for s in result["segments"] for w in s["words"]])
    assert [w["word"] for w in found[0]] == [w["word"] for w in found[1]]
    for exact, ours in zip(*found, strict=True):
        assert abs(exact["start"] - ours["start"]) <= 0.1 and abs(exact["end"] - ours["end"]) <= 0.1
