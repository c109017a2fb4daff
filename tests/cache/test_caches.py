"""Every cache form, in float64, against its formula written out in `tests/support/formulas.py`."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.base import Room, Rows, Step
from slimwhisper.cache.fold import Attention, Context, fold
from slimwhisper.cache.forms import PRESETS, choose_forms, cross_names, self_names
from slimwhisper.cache.latent import LatentAttention, LatentCross, prefers_latent
from slimwhisper.cache.plan import CachePlan, DecoderCache, SelfCache
from slimwhisper.cache.pool import PAGE
from slimwhisper.errors import OptionError
from slimwhisper.kernels.dispatch import Kernels
from tests.support import formulas as plain
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.reference import set_spectrum
from tests.support.steps import self_step

WIDTH, HEADS, FRAMES, LENGTH = 96, 3, 50, 32  # heads no power of two
DIMS = tiny_dims(width=WIDTH, heads=HEADS, text_layers=2, multilingual=False, n_text_ctx=LENGTH)
STATE = {
    name: t.double()
    for name, t in set_spectrum(random_state(DIMS, seed=0), DIMS, condition=100.0).items()
    if name.startswith("decoder.blocks")
}
CPU = torch.device("cpu")


def block(name: str, layer: int) -> Attention:
    return Attention.from_state(STATE, f"decoder.blocks.{layer}.{name}.", HEADS)


def weights(name: str, layer: int, state: Mapping[str, Tensor] = STATE) -> plain.PlainAttention:
    """The same block for row vectors, x W, nothing folded; of another state with as many heads."""

    def get(suffix: str) -> Tensor:
        return state[f"decoder.blocks.{layer}.{name}.{suffix}"].double()

    return plain.PlainAttention(
        w_q=get("query.weight").T,
        b_q=get("query.bias"),
        w_k=get("key.weight").T,
        w_v=get("value.weight").T,
        b_v=get("value.bias"),
        w_o=get("out.weight").T,
        b_o=get("out.bias"),
        heads=HEADS,
    )


def plan(cross: str, own: str) -> CachePlan:
    first = block("cross_attn", 0).key
    layers = range(DIMS.n_text_layer)
    crosses = [fold(block("cross_attn", i), cross, Context(first, layer=i)) for i in layers]
    plan = CachePlan(crosses, [fold(block("attn", i), own) for i in layers])
    return plan.to(CPU, torch.float64)


def test_the_hybrids_first_layer_has_no_key_map() -> None:
    """It keeps its own keys: 3 d^2 products a step, not 4 (section 6, end)."""
    first, other = plan("hybrid", "x").cross
    assert first.key_map is None and first.value_map is not None
    assert other.key_map is not None


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def plain_cross(form: str, layer: int, x: Tensor, source: Tensor) -> Tensor:
    p = weights("cross_attn", layer)
    if form == "hybrid":
        return plain.attend_hybrid(p, weights("cross_attn", 0).w_k, x, source)
    attend = {"kv": plain.attend_kv, "k": plain.attend_k, "v": plain.attend_v, "e": plain.attend_x}
    return attend[form](p, x, source)


def plain_self(form: str, layer: int, x: Tensor) -> Tensor:
    attend = {"kv": plain.attend_kv, "k": plain.attend_k, "v": plain.attend_v, "x": plain.attend_x}
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    return attend[form](weights("attn", layer), x, x, hidden)


def test_the_formulas_agree_with_each_other() -> None:
    x, source = noise(4, WIDTH), noise(FRAMES, WIDTH, seed=1)
    expected = plain_cross("kv", 1, x, source)
    for form in cross_names():
        torch.testing.assert_close(plain_cross(form, 1, x, source), expected)


@pytest.mark.parametrize("tokens", [1, 60], ids=["step", "prompt"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("form", cross_names())
def test_cross_forms(form: str, group: int, tokens: int) -> None:
    cache = DecoderCache.allocate(
        plan(form, "x"), slots=3, frames=FRAMES, length=LENGTH, group=group
    )
    features = noise(3, FRAMES, WIDTH, seed=2)
    cache.cross.put(torch.arange(3), features)
    x = noise(3 * group, tokens, WIDTH, seed=3)
    rows = Rows.block(3, group)
    scattered = torch.tensor([2, 0, 1]).repeat(group)
    for layer in range(DIMS.n_text_layer):
        in_place = cache.cross.layers[layer].attend(x, rows)
        gathered = cache.cross.layers[layer].attend(x, Rows.of(rows.ids, scattered))
        for row in range(3 * group):
            for found, slot in ((in_place, row // group), (gathered, int(scattered[row]))):
                expected = plain_cross(form, layer, x[row], features[slot])
                torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("form", self_names())
def test_self_forms(form: str) -> None:
    """Prompts of different lengths, padded; then steps; every row sees its own text alone."""
    cache = DecoderCache.allocate(plan("e", form), slots=3, frames=FRAMES, length=LENGTH)
    texts = [noise(n + 4, WIDTH, seed=n) for n in (3, 7, 5)]
    for layer in range(DIMS.n_text_layer):
        own = cache.self_.layers[layer]
        padded = torch.full((3, 7, WIDTH), 9.0, dtype=torch.float64)
        for row, text in enumerate(texts):
            padded[row, : len(text) - 4] = text[:-4]
        found = [[*t] for t in own.prefill(padded, Rows.of(torch.arange(3)))]
        found = [f[: len(t) - 4] for f, t in zip(found, texts, strict=True)]
        for n in range(4):
            positions = torch.tensor([len(t) - 4 + n for t in texts])
            rows = Rows.block(3) if n % 2 else Rows.of(torch.arange(3))
            step = Step.at(rows, positions, int(positions.max()) + 1, False, torch.float64)
            x = torch.stack([t[p] for t, p in zip(texts, positions.tolist(), strict=True)])
            for row, y in enumerate(self_step(own, x.unsqueeze(1), step)):
                found[row].append(y[0])
        for row, text in enumerate(texts):
            torch.testing.assert_close(torch.stack(found[row]), plain_self(form, layer, text))


@pytest.mark.parametrize("form", self_names())
def test_a_fresh_text_never_meets_the_last_ones_numbers(form: str) -> None:
    cache = DecoderCache.allocate(plan("e", form), slots=2, frames=FRAMES, length=LENGTH)
    own = cache.self_.layers[0]
    for buffer in own.tensors:
        buffer.fill_(float("nan"))
    x = noise(2, 3, WIDTH)
    own.prefill(x, Rows.of(torch.arange(2)))
    step = Step.at(Rows.block(2), torch.tensor([3, 3]), 10, False, torch.float64)
    assert torch.isfinite(self_step(own, noise(2, 1, WIDTH, seed=1), step)).all()


def filled(cross: str, own: str, slots: int, group: int = 1) -> DecoderCache:
    """Audio in every slot, and two tokens in every row."""
    cache = DecoderCache.allocate(plan(cross, own), slots, FRAMES, LENGTH, group)
    cache.cross.put(torch.arange(slots), noise(slots, FRAMES, WIDTH, seed=2))
    rows = Rows.of(torch.arange(slots * group))
    cache.self_.layers[1].prefill(noise(slots * group, 2, WIDTH, seed=5), rows)
    return cache


def third(cache: DecoderCache, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """What the third token x [N, 1, d] of these rows gets from both caches."""
    step = Step.at(rows, torch.full((len(x),), 2), 3, True, torch.float64)
    return cache.cross.layers[1].attend(x, rows), self_step(cache.self_.layers[1], x, step)


EACH = pytest.mark.parametrize(
    ("cross", "own"), [*PRESETS.values(), ("v", "v"), ("hybrid", "x")], ids="+".join
)


@pytest.mark.parametrize("form", self_names())
@pytest.mark.parametrize("ask", [False, True])
def test_rows_that_follow_others(form: str, ask: bool) -> None:
    """Beams of three windows that go on as each other, in pages in any order; each row's text is
    still its own, and a step copies one page of a row at most.
    """
    generator = torch.Generator().manual_seed(0)
    pages = -(-LENGTH // PAGE)
    cache = SelfCache(plan("e", form), 6, LENGTH)
    table = torch.randperm(6 * pages, generator=generator).view(6, pages)
    rows, own = Rows(torch.arange(6), torch.arange(3), 2, table), cache.layers[1]
    prompts = [noise(n, WIDTH, seed=n) for n in (3, 3, 14, 14, 9, 9)]
    padded = torch.stack([torch.nn.functional.pad(p, (0, 0, 0, 14 - len(p))) for p in prompts])
    own.prefill(padded, rows)
    texts = [list(p) for p in prompts]
    for n in range(17):
        x, at = noise(6, WIDTH, seed=40 + n), torch.tensor([len(text) for text in texts])
        step = Step.at(rows, at, int(at.max()) + 1, False, torch.float64)
        for row, y in enumerate(self_step(own, x[:, None], step)[:, 0]):
            texts[row].append(x[row])
            torch.testing.assert_close(y, plain_self(form, 1, torch.stack(texts[row]))[-1])
        chosen = torch.randint(0, 2, (6,), generator=generator) + torch.arange(6) // 2 * 2
        cache.follow(rows, chosen, at + 1, ask)
        texts = [list(texts[i]) for i in chosen.tolist()]


@EACH
def test_blocks_that_begin_elsewhere(cross: str, own: str) -> None:
    """Neighbouring slots and rows are read in place wherever they lie, as if gathered."""
    x, found = noise(4, 1, WIDTH, seed=3), []
    for rows in (
        Rows.block(2, 2, first_slot=2, first_row=3),
        Rows.of(torch.arange(3, 7), torch.tensor([2, 2, 3, 3])),
    ):
        found.append(third(filled(cross, own, 4, 2), x, rows))
    for in_place, gathered in zip(*found, strict=True):
        torch.testing.assert_close(in_place, gathered)


@pytest.mark.parametrize("form", cross_names())
def test_scores_of_some_heads(form: str) -> None:
    """Equal to the scores of the unfolded formula: q_i K_i^T / sqrt(d_k)."""
    cache = DecoderCache.allocate(plan(form, "x"), slots=3, frames=FRAMES, length=LENGTH)
    features = noise(3, FRAMES, WIDTH, seed=2)
    cache.cross.put(torch.arange(3), features)
    x, heads = noise(3, 5, WIDTH, seed=3), torch.tensor([HEADS - 1, 0])
    for layer in range(DIMS.n_text_layer):
        p = weights("cross_attn", layer)
        found = cache.cross.layers[layer].scores(x, Rows.block(3), heads)
        width = WIDTH // HEADS
        q = (x @ p.w_q + p.b_q).unflatten(-1, (HEADS, width))
        k = (features @ p.w_k).unflatten(-1, (HEADS, width))
        expected = torch.einsum("rthw,rphw->rhtp", q, k)[:, heads] * width**-0.5
        torch.testing.assert_close(found, expected)


def test_prefill_takes_the_cheaper_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries a slot go by the latent, many through K and V made for the moment."""
    ran: list[str] = []
    for name in ("by_latent", "by_heads"):
        original = getattr(LatentAttention, name)

        def spy(self: LatentAttention, *args: Tensor, name: str = name, original=original):
            ran.append(name)
            return original(self, *args)

        monkeypatch.setattr(LatentAttention, name, spy)
    folded = fold(block("cross_attn", 0), "e").to(CPU, torch.float64)
    cross = LatentCross(folded, Room(1, FRAMES, CPU, torch.float64, Kernels(CPU, torch.float64)))
    for tokens in (1, 32, 60):
        cross.attend(noise(1, tokens, WIDTH), Rows.block(1))
    assert ran == ["by_latent", "by_latent", "by_heads"]
    assert [prefers_latent(t, HEADS, WIDTH) for t in (1, 32, 60)] == [True, True, False]


@pytest.mark.parametrize(("cross", "own"), [*PRESETS.values(), ("hybrid", "v"), ("v", "x")])
def test_a_cache_knows_its_bytes(cross: str, own: str) -> None:
    slots, group = 3, 2
    cache = DecoderCache.allocate(plan(cross, own), slots, FRAMES, LENGTH, group)
    cross_values = {"kv": 2 * 2, "k": 2, "v": 2, "e": 1, "hybrid": 1}[cross]  # two layers
    own_values = 2 * (2 if own == "kv" else 1)
    assert cache.cross.nbytes() == 8 * slots * FRAMES * WIDTH * cross_values
    assert cache.self_.nbytes() == 8 * slots * group * LENGTH * WIDTH * own_values
    nothing = DecoderCache.allocate(
        plan(cross, own), slots, FRAMES, LENGTH, group, torch.device("meta")
    )
    assert nothing.cross.nbytes() == cache.cross.nbytes()
    assert nothing.self_.nbytes() == cache.self_.nbytes()


def test_a_key_bias_changes_nothing() -> None:
    """It adds one number to all of a query's scores, so dropping it is exact."""
    x, source = noise(4, WIDTH), noise(FRAMES, WIDTH, seed=1)
    p, bias = weights("cross_attn", 0), noise(WIDTH, seed=7)
    keys, values = source @ p.w_k + bias, source @ p.w_v
    biased = p.run(x, None, lambda q, c: (q @ keys[:, c].T, lambda s: s @ values[:, c]))
    torch.testing.assert_close(biased, plain.attend_kv(p, x, source))


def test_float8_columns_are_scaled_by_the_norms_weight() -> None:
    """No smaller than a 64th of its bias; other scales are as right, but round more."""
    weight, bias = noise(WIDTH, seed=6), noise(WIDTH, seed=7)
    weight[0], bias[0], weight[1], bias[1] = 0, 64, 0, 0
    folded = fold(block("attn", 0), "x8", Context(norm=(weight, bias)))
    expected = weight.abs().maximum(bias.abs() / 64)
    expected[1] = 1e-6
    torch.testing.assert_close(folded.columns, expected)
    assert torch.equal(folded.offset, bias)


def test_forms_are_chosen_by_name() -> None:
    assert choose_forms() == ("e", "x")
    assert choose_forms("option2") == ("e", "k")
    assert choose_forms("baseline", cross_cache="hybrid") == ("hybrid", "kv")
    assert choose_forms("slim", self_cache="v") == ("e", "v")
    for wrong in ({"cache": "fast"}, {"cross_cache": "x"}, {"self_cache": "e"}):
        with pytest.raises(OptionError, match="is not one of"):
            choose_forms(**wrong)
