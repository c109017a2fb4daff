"""Every approximate form of the table: the papers' definitions in float64, the exact form where
nothing is left out, and what is kept and read, whatever happens to slots and rows.
"""

import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

import slimwhisper
from slimwhisper.cache.activations import Activations
from slimwhisper.cache.approximate.compact import Compact, merge_neighbours
from slimwhisper.cache.approximate.keyformer import (
    KeyformerSelf,
    KeyformerSettings,
    gumbel,
)
from slimwhisper.cache.approximate.zack import ZackSettings, ranks
from slimwhisper.cache.base import PagedLayer, Rows, SelfLayer, Step
from slimwhisper.cache.forms import FORMS, choose_forms, form_of, settings_of
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Attempt, Decoded, Request, Retry, Search
from slimwhisper.errors import OptionError
from slimwhisper.model.calibration import exact_plan, learned_by
from tests.cache.test_caches import noise, weights
from tests.support import approximate as papers
from tests.support import formulas
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.paths import SAMPLES
from tests.support.steps import run_text, self_step, steps_without_values
from tests.support.windows import (
    CPU,
    SHORT,
    VOCABULARY,
    assert_same,
    run,
    short_model,
    short_windows,
)

WIDTH, HEADS, FRAMES, LENGTH, LAYERS = 96, 3, 50, 24, 2  # heads no power of two
D_K = WIDTH // HEADS
DIMS = tiny_dims(
    width=WIDTH, heads=HEADS, text_layers=LAYERS, multilingual=False, n_text_ctx=LENGTH
)
STATE = random_state(DIMS, seed=0)
for name, tensor in STATE.items():  # head i's columns fall to 10^-i of the first: ranks differ
    if name.startswith("decoder") and name.endswith(("query.weight", "key.weight", "value.weight")):
        falls = [torch.logspace(0, -i, D_K) for i in range(HEADS)]
        STATE[name] = 2 * tensor * torch.cat(falls)[:, None]
RECORDED = Activations(
    noise(FRAMES, WIDTH, seed=1),
    [noise(40, WIDTH, seed=2 + i) for i in range(LAYERS)],
    [noise(40, WIDTH, seed=8 + i) for i in range(LAYERS)],
)

BOTH = [
    "zack:removal=0.2,multiple=4",
    "zack:keep=0.4,multiple=8",
    "zack:rank=7,multiple=1",
    "sparse:threshold=0.015",
    "sparse:threshold=0.1",
    "sparq:r=9,k=7",
    "sparq:r=9,k=7,twice=true",
    "sparq:r=all,k=9,local=0.5",
    "sparq_latent:r=9,k=7",
    "sparq_latent:r=9,k=7,twice=true",
    "sparq_latent:r=all,k=9,local=0.5",
]
CROSS = [*BOTH, "compact:merge=0.5", "compact:merge=0.3"]
SELF = [
    *BOTH,
    "keyformer:budget=6",
    "keyformer:budget=6,steps=5,seed=3,tau_end=4.0",
    "keyformer:budget=6,noise=none,tau_end=1,recent=0.5",  # H2O
    "keyformer:budget=6,recent=1",  # window
    "keyformer:budget=6,recent=1,sinks=2",  # StreamingLLM
    "keyformer:budget=2",
    "keyformer_latent:budget=6",
    "keyformer_latent:budget=6,recent=0.3,sinks=2",
]
WHOLE = [f"{form.name}:{form.whole}" for form in FORMS.values() if not form.exact]
FLOAT8 = ["compact:float8=true", "keyformer_latent:budget=6,float8=true"]


def serves(spec: str, part: str) -> bool:
    form = form_of(spec)
    return (form.cross if part == "cross" else form.self_) is not None and not (
        part == "self" and "merge=0" in spec
    )


@cache
def plan(cross: str = "e", own: str = "x") -> CachePlan:
    """In float64, not rounded."""
    return exact_plan(STATE, DIMS, cross, own, RECORDED)


def allocate(
    cross: str = "e",
    own: str = "x",
    slots: int = 3,
    group: int = 1,
    dtype: torch.dtype = torch.float64,
) -> DecoderCache:
    return DecoderCache.allocate(plan(cross, own).to(CPU, dtype), slots, FRAMES, LENGTH, group)


def plain(part: str, layer: int) -> formulas.PlainAttention:
    return weights("cross_attn" if part == "cross" else "attn", layer, STATE)


@cache
def rotations(spec: str, part: str, layer: int) -> papers.Rotations:
    """R and R_v of every head, cut to the ranks that the product chose."""
    made = plan(cross=spec) if part == "cross" else plan(own=spec)
    sizes = (made.cross if part == "cross" else made.self_)[layer].learned["ranks"].long().tolist()
    asking, source = RECORDED.queries(part, layer).double(), RECORDED.of(part, layer).double()
    found = papers.decompose(plain(part, layer), asking, source)
    return [(k[0][:, :r], v[0][:, :r_v]) for (k, v), r, r_v in zip(found, *sizes, strict=True)]


def cross_reference(spec: str, layer: int, x: Tensor, source: Tensor) -> Tensor:
    """x [T, d] over a window [p, d] -> [T, d]; T = 1 is a step."""
    p, asked, name = plain("cross", layer), settings_of(spec), spec.partition(":")[0]
    if spec in WHOLE:
        return formulas.attend_kv(p, x, source)
    if name == "zack":
        return papers.attend_zack(p, rotations(spec, "cross", layer), x, source)
    if name == "compact":
        left = papers.merged(source, asked.groups(len(source)))
        return formulas.attend_x(p, x, left)
    if len(x) > 1:
        return formulas.attend_kv(p, x, source)
    if name == "sparse":
        return papers.attend_sparse(p, x[0], source, asked.threshold)[0][None]
    attend = papers.attend_sparq if name == "sparq" else papers.attend_sparq_latent
    return attend(p, x[0], source, asked, False)[None]


def self_reference(spec: str, layer: int, text: Tensor, prompt: int) -> Tensor:
    """A text [n, d] of which the first `prompt` tokens come at once -> [n, d]."""
    p, asked, name = plain("self", layer), settings_of(spec), spec.partition(":")[0]
    if spec in WHOLE:
        return formulas.attend_kv(p, text, text, torch.ones(len(text), len(text)).triu(1).bool())
    if name == "zack":
        return papers.attend_zack(p, rotations(spec, "self", layer), text, text, causal=True)
    if name.startswith("keyformer"):
        zeta = gumbel(asked.seed, layer, HEADS, LENGTH).double()
        by_head = name == "keyformer"
        return papers.decode_keyformer(p, text, prompt, asked, zeta, LENGTH, by_head)[0]

    def attend(x: Tensor, source: Tensor) -> Tensor:
        if name == "sparse":
            return papers.attend_sparse(p, x, source, asked.threshold)[0]
        form = papers.attend_sparq if name == "sparq" else papers.attend_sparq_latent
        return form(p, x, source, asked, True)

    return papers.by_steps(attend, lambda x, s: formulas.attend_kv(p, x, s), text, prompt)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("spec", [*CROSS, *(s for s in WHOLE if serves(s, "cross"))])
def test_cross_attention_is_the_papers(spec: str, group: int) -> None:
    """Steps and prompts, in place and gathered; the slots have been used before."""
    cache, features = allocate(spec, "x", 3, group), noise(3, FRAMES, WIDTH, seed=2)
    features = features.cumsum(dim=1) / 3 if "compact" in spec else features
    cache.cross.put(torch.arange(3), noise(3, FRAMES, WIDTH, seed=9))  # earlier windows
    cache.cross.put(torch.arange(3), features)
    rows = Rows.block(3, group)
    scattered = Rows.of(rows.ids, torch.tensor([2, 0, 1]).repeat(group))
    for i, layer in enumerate(cache.cross.layers):
        for tokens, call in ((1, layer.step), (4, layer.attend)):
            x = noise(3 * group, tokens, WIDTH, seed=3)
            for where in (rows, scattered):
                found = call(x, where)
                slots = where.slots.repeat_interleave(where.group)
                for row, slot in enumerate(slots.tolist()):
                    expected = cross_reference(spec, i, x[row], features[slot])
                    torch.testing.assert_close(found[row], expected)
        if spec in WHOLE:  # for the words' times
            every = [allocate(form).cross for form in (spec, "kv")]
            for each in every:
                each.put(torch.arange(3), features)
            asked = noise(3, 4, WIDTH, seed=3), Rows.block(3), torch.tensor([HEADS - 1, 0])
            torch.testing.assert_close(*(each.layers[i].scores(*asked) for each in every))


def copy_texts(layer: SelfLayer, rows: list[int], sources: list[int]) -> None:
    """Row rows[i] becomes row sources[i]: all of its pages, where it has several."""
    each = -(-LENGTH // layer.page) if isinstance(layer, PagedLayer) else 1
    pages = (torch.tensor([rows, sources])[..., None] * each + torch.arange(each)).flatten(1)
    layer.copy_rows(*pages)


@pytest.mark.parametrize("spec", [*SELF, *(s for s in WHOLE if serves(s, "self"))])
def test_self_attention_is_the_papers(spec: str) -> None:
    """Padded prompts of different lengths, steps, rows that become copies or begin again."""
    layer, prompts = allocate("e", spec, 4).self_.layers[1], [3, 11, 7, 9]
    for buffer in layer.tensors:  # whatever was here before
        buffer.fill_(1)
    texts = [list(noise(n, WIDTH, seed=n) * 2) for n in prompts]
    padded = torch.full((4, max(prompts), WIDTH), 9.0, dtype=torch.float64)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = torch.stack(text)
    found = layer.prefill(padded, Rows.of(torch.arange(4), lengths=torch.tensor(prompts)))
    outputs = [list(f[:n]) for f, n in zip(found, prompts, strict=True)]

    def become(sources: list[int]) -> None:
        for rows in (texts, outputs):
            rows[:] = [list(rows[i]) for i in sources]
        prompts[:] = [prompts[i] for i in sources]

    for n in range(12):
        if n == 3:
            copy_texts(layer, [0, 1], [1, 0])
            become([1, 0, 2, 3])
        if n == 5:
            copy_texts(layer, [2, 3, 1], [3, 2, 0])
            become([0, 0, 3, 2])
        if n == 7:
            texts[3], prompts[3] = list(noise(5, WIDTH, seed=30)), 5
            outputs[3] = list(
                layer.prefill(torch.stack(texts[3])[None], Rows.of(torch.tensor([3])))[0]
            )
        x = noise(4, WIDTH, seed=40 + n) * 2
        at = torch.tensor([len(text) for text in texts])
        rows = Rows.block(4) if n % 2 else Rows.of(torch.arange(4))
        step = Step.at(rows, at, int(at.max()) + 1, False, torch.float64)
        for row, y in enumerate(self_step(layer, x[:, None], step)[:, 0]):
            texts[row].append(x[row])
            outputs[row].append(y)
    for text, prompt, ours in zip(texts, prompts, outputs, strict=True):
        expected = self_reference(spec, 1, torch.stack(text), prompt)
        torch.testing.assert_close(torch.stack(ours), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", [*WHOLE, "zack:keep=0.5,multiple=4", "compact:merge=0.5"])
def test_other_dtypes(spec: str, dtype: torch.dtype) -> None:
    """No choice depends on rounding here, or little would be the same."""
    forms = (spec if serves(spec, "cross") else "e", spec if serves(spec, "self") else "x")
    features, x, found = noise(2, FRAMES, WIDTH, seed=2), noise(2, 3, WIDTH, seed=3), []
    features, x = (t.to(dtype).double() for t in (features.cumsum(1) / 3, x))
    for kind in (dtype, torch.float64):
        cache, rows = allocate(*forms, 2, dtype=kind), Rows.block(2)
        cache.cross.put(torch.arange(2), features.to(kind))
        own = cache.self_.layers[0]
        own.prefill(x.to(kind), rows)
        step = Step.at(rows, torch.tensor([3, 2]), 4, False, kind)
        outputs = (
            cache.cross.layers[0].step(x[:, :1].to(kind), rows),
            self_step(own, x[:, :1].to(kind), step),
        )
        assert all(t.dtype == kind for t in outputs)
        found.append([t.double() for t in outputs])
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < 50 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("spec", [*BOTH, *FLOAT8, "compact:merge=0.5", "keyformer:budget=3"])
def test_a_step_reads_nothing_on_the_host(spec: str) -> None:
    """It runs where tensors have no values, so it can be captured as a CUDA graph."""
    forms = (spec if serves(spec, "cross") else "e", spec if serves(spec, "self") else "x")
    steps_without_values(plan(*forms), FRAMES, LENGTH)


@pytest.mark.parametrize(
    ("spec", "kept", "read"),
    [  # values of a window, and of a step of one layer, in float16
        ("sparq:r=9,k=7", 2 * WIDTH * (2 * FRAMES + 1), FRAMES * WIDTH + 7 * WIDTH + WIDTH),
        # M = S r + 2 k d_k + 4 d_k of each head (appendix C2), less the 3 d_k that are written
        (
            "sparq:r=9,k=7,twice=true",
            2 * WIDTH * (3 * FRAMES + 1),
            HEADS * (FRAMES * 9 + 2 * 7 * D_K + D_K),
        ),
        ("sparq_latent:r=9,k=7", WIDTH * (FRAMES + 1), FRAMES * WIDTH + WIDTH),
        (
            "sparq_latent:r=9,k=7,twice=true",
            WIDTH * (2 * FRAMES + 1),
            FRAMES * 9 + 7 * WIDTH + WIDTH,
        ),
        ("sparse", 4 * FRAMES * WIDTH, 2 * FRAMES * WIDTH),
        ("zack:rank=8", 2 * 2 * FRAMES * HEADS * 16, 2 * FRAMES * HEADS * 16),
        # log n [m] in float32, and the group of each frame [p] in two bytes, which steps leave
        ("compact:merge=0.33", 17 * (WIDTH + 2) + FRAMES, 17 * (WIDTH + 2)),
        ("compact:float8=true", FRAMES * (WIDTH // 2 + 2), FRAMES * (WIDTH // 2 + 2)),
    ],
)
def test_what_is_kept_and_read_of_the_audio(spec: str, kept: int, read: int) -> None:
    cache = allocate(spec, "x", 3, dtype=torch.float16)
    assert cache.cross.nbytes() == 3 * 2 * kept
    assert cache.cross.layers[0].read_bytes(1) == 2 * read


@pytest.mark.parametrize(
    ("spec", "each", "more"),
    [  # bytes of a token, and of a row besides, in float16
        ("sparq:k=7", 2 * 2 * WIDTH, 4 * WIDTH),
        ("sparq_latent:k=7,twice=true", 2 * 2 * WIDTH, 4 * WIDTH),
        ("zack:rank=8", 2 * 2 * HEADS * 16, 0),
        ("compact:float8=true", WIDTH + 4, 0),
    ],
)
def test_what_is_kept_of_a_text(spec: str, each: int, more: int) -> None:
    cache = allocate("e", spec, 3, dtype=torch.float16).self_
    tokens = 32 if form_of(spec).paged else LENGTH  # whole pages
    assert cache.nbytes() == LAYERS * 3 * (tokens * each + more)


def test_keyformer_keeps_a_budget() -> None:
    """k tokens with their scores and positions, and a row's steps."""
    for spec, each, groups in (
        ("keyformer:budget=8", 2 * 2 * WIDTH, HEADS),
        ("keyformer_latent:budget=8", 2 * WIDTH, 1),
        ("keyformer_latent:budget=8,float8=true", WIDTH + 4, 1),
    ):
        layer = allocate("e", spec, 3, dtype=torch.float16).self_.layers[0]
        row = 8 * (each + groups * (4 + 2)) + 2
        assert layer.nbytes() == 3 * row
        assert [layer.read_bytes(0, n) for n in (2, 8, 20)] == [row / 4, row, row]


# -- what one form has alone ---------------------------------------------------------------------


@pytest.mark.parametrize("spec", [s for s in SELF if "keyformer" in s])
def test_keyformer_keeps_the_papers_tokens(spec: str) -> None:
    layer, text = allocate("e", spec, 1).self_.layers[1], noise(20, WIDTH, seed=4) * 2
    run_text(layer, text, 9)
    assert isinstance(layer, KeyformerSelf)
    zeta = gumbel(settings_of(spec).seed, 1, HEADS, LENGTH).double()
    asked, by_head = settings_of(spec), "latent" not in spec
    _, kept = papers.decode_keyformer(plain("self", 1), text, 9, asked, zeta, LENGTH, by_head)
    held = [sorted(p) for p in layer.chosen.positions[0].tolist()]
    assert held == (kept if by_head else kept[:1])
    if "recent=1" in spec:
        first = 20 - asked.budget + asked.sinks
        assert all(tokens == [*range(asked.sinks), *range(first, 20)] for tokens in held)


def test_gumbel_noise() -> None:
    """Its mean is Euler's constant and its variance pi^2 / 6; seeds and layers have their own."""
    many = gumbel(0, 0, 4, 50_000)
    assert torch.isfinite(many).all() and torch.equal(many, gumbel(0, 0, 4, 50_000))
    assert float(many.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(many.var()) == pytest.approx(math.pi**2 / 6, rel=0.02)
    assert float((torch.corrcoef(many) - torch.eye(4)).abs().max()) < 0.02
    assert len({float(gumbel(s, i, 1, 1)) for s in range(3) for i in range(3)}) == 9


def test_keyformers_window() -> None:
    """Section 4.4.4: 20 to 30 %."""
    for budget, recent, sinks, window in (
        (60, 0.2, 0, 12),
        (64, 0.25, 0, 16),
        (64, 1.0, 4, 60),
        (None, 0.3, 0, 134),
        (2, 0.2, 0, 1),
    ):
        assert KeyformerSettings(budget, recent, sinks).window(448) == window


def test_float8_is_that_of_the_exact_forms() -> None:
    features, x = noise(3, FRAMES, WIDTH, seed=2), noise(3, 1, WIDTH, seed=3)
    text, found = noise(9, WIDTH, seed=4), []
    for form in ("compact:float8=true", "8"):
        cross, own = (form, form) if "compact" in form else ("e8", "x8")
        cache = allocate(cross, own)
        cache.cross.put(torch.arange(3), features)
        found.append(
            (
                cache.cross.layers[1].attend(x, Rows.block(3)),
                run_text(cache.self_.layers[1], text, 5),
            )
        )
    assert all(torch.equal(ours, exact) for ours, exact in zip(*found, strict=True))
    budget, exact = (
        run_text(
            allocate("e", f"keyformer_latent:budget=6,recent=1{eight}").self_.layers[1], text, 5
        )
        for eight in (",float8=true", "")
    )
    assert 1e-5 < (budget - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("groups", [1, 7, 25, 44, 49, 50])
def test_groups_are_those_of_the_definition(groups: int) -> None:
    """Each window by itself: silence becomes little."""
    x = noise(3, FRAMES, WIDTH, seed=2)
    x[:, 36:] *= 0.01
    x = x.cumsum(dim=1)
    means, sizes, group_of = merge_neighbours(x, groups)
    for window, plainly in enumerate(papers.groups_of(w, groups) for w in x):
        assert sizes[window].tolist() == [len(members) for members in plainly]
        expected = [g for g, members in enumerate(plainly) for _ in members]
        assert group_of[window].tolist() == expected
        torch.testing.assert_close(means[window][expected], papers.merged(x[window], groups))
    assert groups > 25 or (group_of[:, -1] - group_of[:, 36] <= 1).all()


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
    made, total = plan(*("zack:removal=0.1,multiple=4",) * 2), 0
    for layer, folded in enumerate(made.cross if part == "cross" else made.self_):
        source, asking = RECORDED.of(part, layer).double(), RECORDED.queries(part, layer).double()
        found = papers.decompose(plain(part, layer), asking, source)
        for head, parts in enumerate(found):
            for row, (_, values) in enumerate(parts):
                rank = papers.rank_of(values.tolist(), 0.1)
                assert folded.learned["ranks"][row, head] == min(-(-rank // 4) * 4, D_K)
        total += int(folded.learned["ranks"].sum())
        assert len(folded.learned["ranks"].unique()) > 1
    cache = DecoderCache.allocate(made.to(CPU, torch.float64), 3, FRAMES, LENGTH)
    held = cache.cross.nbytes() / FRAMES if part == "cross" else cache.self_.nbytes() / LENGTH
    assert held == 8 * 3 * total


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("width", "multiple"), [(64, 16), (64, 1), (24, 16)])
def test_zacks_keep_is_one_removal_for_all(keep: float, width: int, multiple: int) -> None:
    """The smallest that leaves no more than this share: a little less would leave too much."""
    spectra = noise(4, 2, 6, width, seed=5).abs().sort(dim=-1, descending=True).values
    spectra = spectra ** torch.linspace(0.2, 3, 6, dtype=torch.float64)[:, None]
    found = ranks(ZackSettings(keep=keep, multiple=multiple), spectra)
    assert found.sum() <= max(keep * found.numel() * width, found.numel() * min(multiple, width))
    every = [
        ranks(ZackSettings(removal=float(share), multiple=multiple), spectra)
        for share in torch.linspace(0, 0.999, 500, dtype=torch.float64)
    ]
    fitting = [r for r in every if r.sum() <= keep * r.numel() * width]
    assert not fitting or found.sum() >= max(r.sum() for r in fitting)


def test_zacks_ranks_are_rounded_up() -> None:
    falling = torch.linspace(1, 0.1, 64, dtype=torch.float64).expand(2, 3, 64)
    for rank, expected in ((1, 16), (16, 16), (17, 32), (63, 64), (99, 64)):
        assert (ranks(ZackSettings(rank=rank), falling) == expected).all()
    assert (ranks(ZackSettings(rank=17), falling[..., :24]) == 24).all()  # no more than d_k
    assert (ranks(ZackSettings(rank=5), falling[..., :8]) == 5).all()  # narrower than 16
    assert ranks(ZackSettings(removal=0.999), falling).min() == 16  # no head without columns
    assert (ranks(ZackSettings(keep=0.01), falling) == 16).all()


def test_what_zack_learned_before_is_used() -> None:
    """Also where there were fewer activations than columns: the rotations are whole."""
    few = Activations(
        RECORDED.features[:5], [t[:5] for t in RECORDED.self_], [t[:5] for t in RECORDED.asking]
    )
    one = exact_plan(STATE, DIMS, "zack:rank=8,multiple=1", "zack:rank=32", few)
    for folded in one.self_:
        for r in folded.learned["keys"].split(D_K, dim=1):
            torch.testing.assert_close(r.T @ r, torch.eye(D_K, dtype=torch.float64))
    learned = learned_by(one)
    other = exact_plan(STATE, DIMS, "zack:rank=8,multiple=1", "zack:rank=32", None, learned)
    for ours, again in zip((*one.cross, *one.self_), (*other.cross, *other.self_), strict=True):
        for part in ("query", "query_bias", "project", "values", "out", "out_bias"):
            assert torch.equal(getattr(ours, part), getattr(again, part))


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sparq:r=0", "r=0: give at least 1, or all"),
        ("sparse:threshold=1", "threshold=1.0: give 0"),
        ("zack:removal=0.1,rank=8", "removal=0.1 and rank=8: give one of"),
        ("compact:merge=0", "merge=0.0: give the share to be left"),
        ("compact:rank=8", "'rank=8' is no setting"),
        ("keyformer:budget=1", "budget=1: give at least 2"),
        ("keyformer:budget=4,sinks=4", "sinks=4: give 0 or more, but less"),
        ("keyformer_latent:noise=gauss", "noise=gauss: give one of"),
        ("keyformer:tau_end=0", "tau_init and tau_end"),
    ],
)
def test_settings_that_make_no_sense(spec: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_forms(**{f"{'self' if 'keyf' in spec else 'cross'}_cache": spec})


def test_a_texts_tokens_are_not_merged() -> None:
    assert [Compact(m).groups(1500) for m in (1, 0.5, 0.07, 0.0001)] == [1500, 750, 105, 1]
    with pytest.raises(ValueError, match=r"^compact: merge=0.5: a text's tokens are not merg"):
        plan("e", "compact:merge=0.5")


@pytest.mark.parametrize(
    ("forms", "search"),
    [
        (("sparq_latent:k=99", "keyformer:budget=8"), None),
        (("compact:merge=0.3", "keyformer_latent:budget=8"), Search(beams=2)),
        (("sparse", "sparq:k=6"), None),
    ],
    ids=["greedy", "beams", "sums"],
)
def test_texts_do_not_depend_on_their_neighbours(
    forms: tuple[str, str], search: Search | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do attempts before: the engine reads prompts together, padded, and says how long each
    is.
    """
    monkeypatch.setattr("slimwhisper.engine.engine.CPU_POSITIONS", 3 * SHORT.n_audio_ctx)
    model, requests = short_model(forms=forms), short_windows(4, sample_len=9)

    def answers(tags: Sequence[int], slots: int) -> dict[int, list[Answer]]:
        seen: set[int] = set()

        def again(tag: int, _: Answer) -> Request | None:
            if tag % 2 == 0 or tag in seen:
                return None
            seen.add(tag)
            return Retry(Attempt(0.0))

        return run(Engine(model, VOCABULARY, slots, search), {t: requests[t] for t in tags}, again)

    together = answers(range(4), 3)
    for tag in range(4):
        (alone,) = answers([tag], 1).values()
        assert_same(together[tag], alone)
        assert len(alone) == 1 + tag % 2
    assert len({a[0].tokens for a in together.values() if isinstance(a[0], Decoded)}) == 4


@pytest.mark.usefixtures("numba")
def test_words_are_where_they_were() -> None:
    """The bundled model: the same words at the same times, within a tenth of a second."""
    found = []
    for cross in ("e", "compact:merge=0.5,float8=true"):
        model = slimwhisper.load_model("digits", cross_cache=cross)
        result = model.transcribe(str(SAMPLES / "phone-number.wav"), word_timestamps=True)
        found.append([w for s in result["segments"] for w in s["words"]])
    assert [w["word"] for w in found[0]] == [w["word"] for w in found[1]]
    for exact, ours in zip(*found, strict=True):
        assert abs(exact["start"] - ours["start"]) <= 0.1 and abs(exact["end"] - ours["end"]) <= 0.1
