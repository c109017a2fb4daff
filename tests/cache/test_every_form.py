"""Every form of the table: its formula or its paper's definition in float64, and its bytes."""

from dataclasses import replace

import pytest
import torch

from slimwhisper.cache.base import DecodeStep, PagedLayer, Rows, SelfLayer
from slimwhisper.cache.forms import names_of, parse_form
from tests.support.cache_forms import (
    D_K,
    FRAMES,
    HEADS,
    LAYERS,
    LENGTH,
    WHOLE,
    WIDTH,
    allocate,
    caches,
    cross_reference,
    is_exact,
    noise,
    plain,
    plan,
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
