"""Every form of the table: its formula or its paper's definition in float64; bytes and pages."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.base import PAGE, DecodeStep, PagedLayer, Rows, SelfLayer, StoreShape
from slimwhisper.cache.decoder_cache import CachePlan, SelfCache
from slimwhisper.cache.fold import Context, fold
from slimwhisper.cache.forms import X8, choose_forms, names_of, parse_form
from slimwhisper.cache.latent import LatentAttention, LatentCross, prefers_latent
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan, record_activations
from slimwhisper.kernels.attention import Latent
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.model.model import Model
from tests.support.cache_forms import (
    CPU,
    D_K,
    FRAMES,
    HEADS,
    LAYERS,
    LENGTH,
    WHOLE,
    WIDTH,
    allocate,
    block,
    caches,
    cross_reference,
    is_exact,
    noise,
    plain,
    plan,
    run_text,
    self_reference,
    self_step,
    serves,
)

BOTH = [
    "zack:removal=0.2,multiple=4",
    "zack:keep=0.4,multiple=8",
    "zack:rank=7,multiple=1",
    "sparse:threshold=0.015",
    "sparse:threshold=0.1",
    *(
        f"{form}:{settings}"
        for form in ("sparq", "sparq_latent")
        for settings in ("r=9,k=7", "r=9,k=7,twice=true", "r=all,k=9,local=0.5")
    ),
]
COMPACT = [f"compact:merge={share}" for share in (0.02, 0.3, 0.5, 0.88)]
CROSS = [*BOTH, *COMPACT, *names_of("cross")]
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
    *names_of("self"),
]
FLOAT8 = ["compact:float8=true", "keyformer_latent:budget=6,float8=true"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("spec", [*CROSS, *(s for s in WHOLE if serves(s, "cross"))])
def test_cross_attention(spec: str, group: int) -> None:
    """Steps and prompts, in place, and gathered with windows that end early; the slots have been
    used before.
    """
    cache, features = allocate(spec, "x", 4, group), noise(4, FRAMES, WIDTH, seed=2)
    if "compact" in spec:
        features[:, 36:] *= 0.01  # silence becomes little
        features = features.cumsum(dim=1) / 3
    earlier = noise(4, FRAMES, WIDTH, seed=9) * (torch.nan if parse_form(spec).exact else 1)
    cache.cross.put(torch.arange(4), earlier)
    cache.cross.put(torch.arange(1, 4), features[1:])
    # the only slot that is never read as a whole
    cache.cross.put(torch.arange(1), features[:1, : 9 if parse_form(spec).exact else None])
    windows, rows = features.unbind(), Rows.block(3, group)
    rows = replace(rows, ids=rows.ids + group, slots=rows.slots + 1, first_slot=1, first_row=group)
    scattered = Rows(rows.ids, torch.tensor([2, 0, 3]).repeat(group))
    ends = torch.tensor([FRAMES, 9, 30]).repeat(group) if parse_form(spec).exact else None
    for i, layer in enumerate(cache.cross.layers):
        for tokens, call in ((1, layer.step), (4, layer.attend), (60, layer.attend)):
            if tokens == 60 and not parse_form(spec).exact:
                continue
            x = noise(3 * group, tokens, WIDTH, seed=3)
            for where in (rows, replace(scattered, audio=ends)):
                attended = call(x, where)
                slots = where.slots.repeat_interleave(where.group)
                for row, slot in enumerate(slots.tolist()):
                    heard = windows[slot][: None if where.audio is None else where.audio[row]]
                    expected = cross_reference(spec, i, x[row], heard)
                    torch.testing.assert_close(attended[row], expected)
        if is_exact(spec):  # for word timestamps: q_i K_i^T / sqrt(d_k)
            x, p = noise(4, 5, WIDTH, seed=3), plain("cross", i)
            heads = torch.tensor([HEADS - 1, 0])
            q = (x @ p.w_q + p.b_q).unflatten(-1, (HEADS, D_K))
            k = (features @ p.w_k).unflatten(-1, (HEADS, D_K))
            expected = torch.einsum("rthw,rphw->rhtp", q, k)[:, heads] * D_K**-0.5
            torch.testing.assert_close(layer.scores(x, Rows.block(4), heads)[1:], expected[1:])


def copy_texts(layer: SelfLayer, rows: list[int], sources: list[int]) -> None:
    """Row rows[i] + 1 becomes row sources[i] + 1: all of its pages, where it has several."""
    each = -(-LENGTH // layer.page) if isinstance(layer, PagedLayer) else 1
    pages = (torch.tensor([rows, sources])[..., None] + 1) * each + torch.arange(each)
    layer.copy_rows(*pages.flatten(1))


@pytest.mark.parametrize("spec", [*SELF, *(s for s in WHOLE if serves(s, "self"))])
def test_self_attention(spec: str) -> None:
    """Padded prompts of different lengths, steps, rows that become copies or begin again."""
    layer, prompts = allocate("e", spec, 5).self_.layers[1], [3, 11, 7, 9]
    for buffer in layer.tensors:  # whatever was here before
        buffer.fill_(float("nan") if buffer.is_floating_point() else 1)
    texts = [list(noise(n, WIDTH, seed=n) * 2) for n in prompts]
    padded = torch.full((4, max(prompts), WIDTH), 9.0, dtype=torch.float64)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = torch.stack(text)
    ids = torch.arange(1, 5)
    first = layer.prefill(padded, Rows(ids, ids, lengths=torch.tensor(prompts)))
    outputs = [list(f[:n]) for f, n in zip(first, prompts, strict=True)]

    def become(sources: list[int]) -> None:
        for rows in (texts, outputs, prompts):
            rows[:] = [list(rows[i]) if rows is not prompts else rows[i] for i in sources]

    for n in range(12):
        if n == 3:
            copy_texts(layer, [0, 1], [1, 0])
            become([1, 0, 2, 3])
        if n == 5:
            copy_texts(layer, [2, 3, 1], [3, 2, 0])
            become([0, 0, 3, 2])
        if n == 7:
            texts[3], prompts[3] = list(noise(5, WIDTH, seed=30)), 5
            outputs[3] = list(layer.prefill(torch.stack(texts[3])[None], Rows(ids[3:], ids[3:]))[0])
        x = noise(4, WIDTH, seed=40 + n) * 2
        at = torch.tensor([len(text) for text in texts])
        rows = replace(Rows.block(4), ids=ids, first_row=1) if n % 2 else Rows(ids, ids)
        step = DecodeStep.at(rows, at, int(at.max()) + 1, False, torch.float64)
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
    features, x, results = noise(2, FRAMES, WIDTH, seed=2), noise(2, 3, WIDTH, seed=3), []
    features, x = (t.to(dtype).double() for t in (features.cumsum(1) / 3, x))
    for kind in (dtype, torch.float64):
        cache, rows = allocate(*forms, 2, dtype=kind), Rows.block(2)
        cache.cross.put(torch.arange(2), features.to(kind))
        layer = cache.self_.layers[0]
        layer.prefill(x.to(kind), rows)
        step, token = DecodeStep.at(rows, torch.tensor([3, 2]), 4, False, kind), x[:, :1].to(kind)
        outputs = (cache.cross.layers[0].step(token, rows), self_step(layer, token, step))
        assert all(t.dtype == kind for t in outputs)
        results.append([t.double() for t in outputs])
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() < 50 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize(
    "spec", [*BOTH[:4:3], *BOTH[5:], *FLOAT8, "compact:merge=0.5", "keyformer:budget=3"]
)
def test_a_step_reads_nothing_on_the_host(spec: str) -> None:
    """It runs where tensors have no values, so it can be captured as a CUDA graph."""
    forms = (spec if serves(spec, "cross") else "e", spec if serves(spec, "self") else "x")
    meta, dtype = torch.device("meta"), torch.float32
    cache = caches(plan(*forms).to(meta, dtype), 2, group=2)
    x = torch.zeros(4, 3, WIDTH, device=meta, dtype=dtype)
    every, locations = torch.arange(4, device=meta), torch.full((4,), 3, device=meta)
    cache.cross.put(every[:2], torch.zeros(2, FRAMES, WIDTH, device=meta, dtype=dtype))
    cross, own = cache.cross.layers[0], cache.self_.layers[0]
    for rows in (Rows.block(2, 2, device=meta), Rows(every, every // 2)):
        own.prefill(x, rows)
        assert cross.attend(x, rows).shape == x.shape
        for full in (True, False):
            step = DecodeStep.at(rows, locations, 4, full, dtype)
            assert self_step(own, x[:, :1], step).shape == (4, 1, WIDTH)
            assert cross.attend(x[:, :1], rows).shape == (4, 1, WIDTH)


@pytest.mark.parametrize(
    ("spec", "stored", "read"),
    [  # values of a window, and of a step of one layer, in float16
        ("kv", LAYERS * 2 * FRAMES * WIDTH, 2 * FRAMES * WIDTH),
        ("k", LAYERS * FRAMES * WIDTH, FRAMES * WIDTH),
        ("e", FRAMES * WIDTH, FRAMES * WIDTH),
        ("hybrid", FRAMES * WIDTH, FRAMES * WIDTH),
        ("e8", FRAMES * (WIDTH // 2 + 2), FRAMES * (WIDTH // 2 + 2)),
        ("sparq:r=9,k=7", 2 * WIDTH * (2 * FRAMES + 1), FRAMES * WIDTH + 7 * WIDTH + WIDTH),
        # of all heads, M = h S r + 2 k d + 4 d (appendix C2), less the 3 d that are written
        ("sparq:r=9,k=7,twice=true", 2 * WIDTH * (3 * FRAMES + 1), 9 * HEADS * FRAMES + 15 * WIDTH),
        ("sparq_latent:r=9,k=7", WIDTH * (FRAMES + 1), FRAMES * WIDTH + WIDTH),
        ("sparq_latent:r=9,k=7,twice=true", WIDTH * (2 * FRAMES + 1), 9 * FRAMES + (7 + 1) * WIDTH),
        ("sparse", 4 * FRAMES * WIDTH, 2 * FRAMES * WIDTH),
        ("zack:rank=8", 2 * 2 * FRAMES * HEADS * 16, 2 * FRAMES * HEADS * 16),
        # log n [m] in float32, and the group of each frame [p] in two bytes, which steps leave
        ("compact:merge=0.33", 17 * (WIDTH + 2) + FRAMES, 17 * (WIDTH + 2)),
        ("compact:float8=true", FRAMES * (WIDTH // 2 + 2), FRAMES * (WIDTH // 2 + 2)),
    ],
)
def test_bytes_of_the_audio(spec: str, stored: int, read: int) -> None:
    for device in ("cpu", "meta"):
        cache = allocate(spec, "x", 3, dtype=torch.float16, device=torch.device(device))
        assert cache.cross.nbytes() == 3 * 2 * stored
    cache = allocate(spec, "x", 3, dtype=torch.float16)
    assert cache.cross.layers[0].read_bytes(1) == 2 * read


@pytest.mark.parametrize(
    ("spec", "token", "row"),
    [  # bytes of a token, and of a row besides, in float16
        ("kv", 2 * 2 * WIDTH, 0),
        ("v", 2 * WIDTH, 0),
        ("x", 2 * WIDTH, 0),
        ("x8", WIDTH + 4, 0),
        ("sparq:k=7", 2 * 2 * WIDTH, 4 * WIDTH),
        ("sparq_latent:k=7,twice=true", 2 * 2 * WIDTH, 4 * WIDTH),
        ("zack:rank=8", 2 * 2 * HEADS * 16, 0),
        # k tokens with their scores and positions, and a row's steps
        ("keyformer:budget=8", 0, 8 * (2 * 2 * WIDTH + 6 * HEADS) + 2),
        ("keyformer_latent:budget=8", 0, 8 * (2 * WIDTH + 6) + 2),
        ("keyformer_latent:budget=8,float8=true", 0, 8 * (WIDTH + 4 + 6) + 2),
    ],
)
def test_bytes_of_a_text(spec: str, token: int, row: int) -> None:
    for device in ("cpu", "meta"):
        cache = allocate("e", spec, 3, 2, torch.float16, torch.device(device)).self_
        assert cache.nbytes() == LAYERS * 3 * 2 * (LENGTH * token + row)
    if "keyformer" in spec:
        layer = allocate("e", spec, 3, dtype=torch.float16).self_.layers[0]
        assert [layer.read_bytes(0, n) for n in (2, 8, 20)] == [row / 4, row, row]


# What forms, rows and pages have in common, and how forms are chosen


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
