"""SparQ attention, forms `sparq` and `sparq_latent`, against Algorithm 1 written out."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.approximate.sparq import (
    STRIDE,
    Asked,
    RunningSums,
    SparQ,
    dense_transfers,
    temperature,
    transfers,
)
from slimwhisper.cache.approximate.sparq_latent import SparQLatent
from slimwhisper.cache.base import Room, Rows, SelfLayer, Step
from slimwhisper.cache.forms import canonical, settings_of
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.model.model import Model
from tests.cache.test_caches import HEADS, WIDTH, noise, plan, weights
from tests.support import formulas as plain
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda
from tests.support.sparq import attend_sparq, attend_sparq_latent
from tests.support.steps import self_step
from tests.support.windows import CPU

FORMS = ("sparq", "sparq_latent")
FRAMES, LENGTH = 50, 3 * STRIDE + 9
D_K = WIDTH // HEADS
Reference = Callable[[plain.PlainAttention, Tensor, Tensor, int, int, int], Tensor]
REFERENCES: dict[str, Reference] = {"sparq": attend_sparq, "sparq_latent": attend_sparq_latent}


def allocate(cross: str, own: str, slots: int, group: int = 1) -> DecoderCache:
    return DecoderCache.allocate(plan(cross, own), slots, FRAMES, LENGTH, group)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("settings", ["r=9,k=7", "r=9,k=7,twice=true", "r=all,k=20,local=0.5"])
@pytest.mark.parametrize("form", FORMS)
def test_cross(form: str, settings: str, group: int) -> None:
    """A step of every row, its window's other rows beside it, in place and gathered."""
    cache, asked = allocate(f"{form}:{settings}", "x", 3, group), settings_of(f"{form}:{settings}")
    features, x = noise(3, FRAMES, WIDTH, seed=2), noise(3 * group, 1, WIDTH, seed=3)
    cache.cross.put(torch.arange(3), noise(3, FRAMES, WIDTH, seed=9))  # earlier windows
    cache.cross.put(torch.arange(3), features[[2, 1, 0]])
    cache.cross.swap(0, 2)
    rows = Rows.block(3, group)
    scattered = torch.tensor([2, 0, 1]).repeat(group)
    for layer, attention in enumerate(cache.cross.layers):
        in_place = attention.step(x, rows)
        gathered = attention.step(x, Rows.of(rows.ids, scattered))
        for row in range(3 * group):
            for found, slot in ((in_place, row // group), (gathered, int(scattered[row]))):
                expected = REFERENCES[form](
                    weights("cross_attn", layer),
                    x[row, 0],
                    features[slot],
                    asked.r or WIDTH,
                    asked.k,
                    0,
                )
                torch.testing.assert_close(found[row, 0], expected)


def texts_of(layer: SelfLayer, texts: list[Tensor], lengths: list[int]) -> Tensor:
    """A prompt for each text's first tokens, padded on the right."""
    padded = torch.full((len(texts), max(lengths), WIDTH), 9.0, dtype=torch.float64)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        padded[row, :n] = text[:n]
    return layer.prefill(padded, Rows.of(torch.arange(len(texts))))


@pytest.mark.parametrize("settings", ["r=9,k=8", "r=all,k=12,twice=true", "r=9,k=8,local=0.625"])
@pytest.mark.parametrize("form", FORMS)
def test_self(form: str, settings: str) -> None:
    """Prompts of different lengths, shorter and longer than k and than a sum's stride; steps;
    copies of rows; rows that are exchanged, overwritten and used again.
    """
    asked = settings_of(f"{form}:{settings}")
    local = int(asked.k * asked.local)
    layer = allocate("e", f"{form}:{settings}", 4).self_.layers[1]
    p = weights("attn", 1)
    lengths = [2, 2 * STRIDE + 3, STRIDE - 1, 6]
    texts = [noise(n, WIDTH, seed=n) for n in lengths]
    texts_of(layer, [noise(LENGTH, WIDTH, seed=i) for i in range(4)], [LENGTH] * 4)  # earlier
    prompted = texts_of(layer, texts, lengths)
    for row, text in enumerate(texts):
        hidden = torch.ones(len(text), len(text), dtype=torch.bool).triu(1)
        expected = plain.attend_kv(p, text, text, hidden)
        torch.testing.assert_close(prompted[row, : len(text)], expected)
    for n in range(12):
        if n == 4:
            extent = max(map(len, texts))
            layer.reorder(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0]), extent)
            texts[:3] = texts[1], texts[1], texts[0]
        if n == 7:
            layer.swap(0, 3)
            layer.move(1, 2)
            texts = [texts[3], texts[1], texts[1], texts[0]]
        if n == 9:
            texts[2] = noise(STRIDE + 5, WIDTH, seed=8)
            layer.prefill(texts[2][None], Rows.of(torch.tensor([2])))
        x = noise(4, WIDTH, seed=50 + n)
        texts = [torch.cat([text, new[None]]) for text, new in zip(texts, x, strict=True)]
        positions = torch.tensor([len(text) - 1 for text in texts])
        rows = Rows.block(4) if n % 2 else Rows.of(torch.arange(4))
        step = Step.at(rows, positions, int(positions.max()) + 1, False, torch.float64)
        found = self_step(layer, x[:, None], step)
        for row, text in enumerate(texts):
            expected = REFERENCES[form](p, text[-1], text, asked.r or WIDTH, asked.k, local)
            torch.testing.assert_close(found[row, 0], expected)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_all_full(form: str) -> None:
    """One text for itself, through steps with no more tokens than k and beyond."""
    layer = allocate("e", f"{form}:r=5,k=4", 1).self_.layers[0]
    text = noise(9, WIDTH, seed=4)
    for n in range(len(text)):
        step = Step.at(Rows.block(1), torch.tensor([n]), n + 1, True, torch.float64)
        found = self_step(layer, text[None, n : n + 1], step)
        expected = REFERENCES[form](weights("attn", 0), text[n], text[: n + 1], 5, 4, 1)
        torch.testing.assert_close(found[0, 0], expected)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_left_out(form: str, twice: bool) -> None:
    """Algorithm 1 itself with r = d and k = S, where a step would be dense: exact."""
    spec = f"{form}:r=all,k=all,twice={twice}"
    cache, features = allocate(spec, "x", 2), noise(2, FRAMES, WIDTH, seed=2)
    cache.cross.put(torch.arange(2), features)
    layer, x, rows = cache.cross.layers[1], noise(2, 1, WIDTH, seed=3), Rows.block(2)
    of = layer.heads if form == "sparq" else layer.attention  # type: ignore[attr-defined]
    q, mean = of.queries(x), layer.store.mean  # type: ignore[attr-defined]
    q = q[:, :, 0] if form == "sparq" else q[:, 0]
    found = of.mix(q, layer.store.kept, mean, Asked.by(rows), 0)  # type: ignore[attr-defined]
    found = of.output(found.unsqueeze(2 if form == "sparq" else 1))
    for row in range(2):
        expected = plain.attend_kv(weights("cross_attn", 1), x[row], features[row])
        torch.testing.assert_close(found[row], expected)
        torch.testing.assert_close(layer.step(x, rows)[row], expected)


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_dense(form: str) -> None:
    """Even one of a single token, or its row would depend on the longer prompts beside it."""
    cache, features = allocate(f"{form}:r=9,k=7", "x", 2), noise(2, FRAMES, WIDTH, seed=2)
    cache.cross.put(torch.arange(2), features)
    for tokens in (1, 3):
        x = noise(2, tokens, WIDTH, seed=3)
        found = cache.cross.layers[0].attend(x, Rows.block(2))
        for row in range(2):
            expected = plain.attend_kv(weights("cross_attn", 0), x[row], features[row])
            torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("form", FORMS)
def test_neighbours_change_nothing(form: str) -> None:
    """A row's results are the same beside a much longer one."""
    text, found = noise(STRIDE, WIDTH, seed=5), []
    for longest in (STRIDE, 3 * STRIDE):
        layer = allocate("e", f"{form}:r=7,k=6", 2).self_.layers[0]
        texts_of(layer, [text, noise(longest, WIDTH, seed=6)], [STRIDE, longest])
        positions = torch.tensor([STRIDE, longest])
        step = Step.at(Rows.block(2), positions, longest + 1, False, torch.float64)
        found.append(self_step(layer, noise(2, 1, WIDTH, seed=7), step)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_dtypes(form: str, dtype: torch.dtype) -> None:
    """With nearly all positions chosen, as the dense form rounds; everything stays finite."""
    cross, own = f"{form}:r=all,k={FRAMES - 1}", f"{form}:r=all,k={STRIDE}"
    features, x = noise(2, FRAMES, WIDTH, seed=2), noise(2, 1, WIDTH, seed=3)
    prompt = noise(2, STRIDE + 1, WIDTH, seed=4)
    positions, found = torch.full((2,), STRIDE + 1), []
    for kind in (torch.float64, dtype):
        forms = plan(cross, own).to(CPU, kind)
        cache = DecoderCache.allocate(forms, 2, FRAMES, LENGTH)
        cache.cross.put(torch.arange(2), features.to(kind))
        layer = cache.self_.layers[0]
        layer.prefill(prompt.to(kind), Rows.block(2))
        step = Step.at(Rows.block(2), positions, STRIDE + 2, False, kind)
        out = (
            cache.cross.layers[0].step(x.to(kind), Rows.block(2)),
            self_step(layer, x.to(kind), step),
        )
        assert all(t.dtype == kind for t in out)
        found.append([t.double() for t in out])
    for exact, rounded in zip(*found, strict=True):
        error = (rounded - exact).norm() / exact.norm()
        assert float(error) < 10 * torch.finfo(dtype).eps


def test_temperature() -> None:
    """All components: sqrt(d_k). Equal ones: sqrt(r). One that has it all: sqrt(d_k)."""
    d_k, r = 64, 16

    def tau(q: Tensor, r: int) -> float:
        return float(temperature(q.abs(), q.abs().topk(r).indices, d_k))

    assert tau(noise(d_k), d_k) == pytest.approx(8)
    assert tau(torch.ones(d_k), r) == pytest.approx(4)
    assert tau(torch.eye(d_k)[3], 1) == pytest.approx(8)
    assert tau(torch.tensor([3.0, 1.0]).repeat(32), 32) == pytest.approx(48**0.5)
    assert tau(torch.zeros(d_k), r) > 0


def test_windows() -> None:
    """l = k / 4 of a text, or the share that is asked; 0 of audio."""
    assert SparQ().window(1500, growing=True) == 32 and SparQ().window(1500, growing=False) == 0
    assert SparQ(k=6).window(448, growing=True) == 1
    assert SparQ(k=8, local=0.625).window(1500, growing=True) == 5
    assert (SparQ().components(64), SparQ(r=None).components(64), SparQ(r=99).components(64)) == (
        32,
        64,
        64,
    )
    assert (SparQ().positions(1500), SparQ().positions(9), SparQ(k=None).positions(9)) == (
        128,
        9,
        9,
    )


def test_the_most_recent_are_always_read() -> None:
    """And tokens that a row does not have come last."""
    given = torch.tensor([[0.0, 0.6, 0.4, 0.0, 0.0, 0.0], [0.2, 0.3, 0.1, 0.15, 0.25, 0.0]])
    asked = replace(Asked.by(Rows.block(2)), last=torch.tensor([2, 4]))
    best = asked.best(given[:, None].double(), k=4, window=2)[:, 0]
    assert best[0, :3].tolist() == [1, 2, 0] and int(best[0, 3]) > 2
    assert best[1].tolist() == [4, 3, 1, 0]


def test_running_means() -> None:
    """At every position, whatever the padding of the prompt held."""
    room = Room(2, LENGTH, CPU, torch.float32, Kernels(CPU, torch.float32))
    sums, tokens = RunningSums(room, 3), noise(2, LENGTH, 3).float()
    for prompt in (1, STRIDE, 2 * STRIDE + 5):
        sums.begin(torch.arange(2), tokens[:, : LENGTH - 1])
        for at in range(prompt, LENGTH):
            tokens[:, at] = noise(2, 3, seed=at).float()
            step = Step.at(Rows.block(2), torch.full((2,), at), at + 1, True, torch.float32)
            torch.testing.assert_close(sums.mean(step, tokens), tokens[:, : at + 1].mean(1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r=0", "r=0: give at least 1, or all"),
        ("k=-3", "k=-3: give at least 1, or all"),
        ("local=-1", "local=-1.0: give a share of k, from 0 to 1"),
        ("local=9", "local=9.0: give a share of k, from 0 to 1"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_settings_that_make_no_sense(form: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        settings_of(f"{form}:{text}")


def test_settings() -> None:
    assert canonical("sparq") == "sparq:r=32,k=128,local=0.25,twice=false"
    assert canonical("sparq_latent:k=all") == "sparq_latent:r=128,k=all,local=0.25,twice=false"
    assert settings_of("sparq_latent") == SparQLatent(r=128)


def test_transfers() -> None:
    """M = S r + 2 k d_k + 4 d_k against 2 S d_k + 2 d_k: for S = 4096, r = 32, k = 128 and heads
    of 128, 6.4 times fewer.
    """
    assert transfers(4096, 32, 128, 128) == 164_352
    assert dense_transfers(4096, 128) == 1_048_832
    assert transfers(1500, 16, 128, 64) == 24_000 + 16_384 + 256


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_kept_and_read(twice: bool) -> None:
    """The paper's count, less the 3 d_k that are written; without K by component, whole rows of K.
    Over the latent, what all heads share.
    """
    r, k, layers = 9, 7, 2
    spec = f"r={r},k={k},twice={twice}"
    cache = allocate(f"sparq:{spec}", f"sparq:{spec}", 2)
    kept = FRAMES * WIDTH * (2 + twice) + WIDTH
    assert cache.cross.nbytes() == 8 * 2 * layers * kept
    read = HEADS * (transfers(FRAMES, r, k, D_K) - 3 * D_K)
    if not twice:
        read = FRAMES * WIDTH + k * WIDTH + WIDTH
    assert cache.cross.layers[0].read_bytes(0) == 8 * read
    sums = -(-LENGTH // STRIDE) + 1
    assert cache.self_.nbytes() == 8 * 2 * layers * WIDTH * (LENGTH * (2 + twice) + sums)
    own, n = cache.self_.layers[0], STRIDE + 10
    first = n * HEADS * r + k * WIDTH if twice else n * WIDTH
    tail = 10 - k // 4  # since the last sum, but for the window
    assert own.read_bytes(0, n) == 8 * (first + k * WIDTH + WIDTH + tail * WIDTH)
    assert own.read_bytes(0, k) == 8 * (2 * k + 1) * WIDTH  # dense

    cache = allocate(f"sparq_latent:{spec}", f"sparq_latent:{spec}", 2)
    assert cache.cross.nbytes() == 8 * 2 * (FRAMES * WIDTH * (1 + twice) + WIDTH)
    read = FRAMES * r + k * WIDTH if twice else FRAMES * WIDTH
    assert cache.cross.layers[0].read_bytes(0) == 8 * (read + WIDTH)
    assert cache.self_.nbytes() == 8 * 2 * layers * WIDTH * (LENGTH * (1 + twice) + sums)
    own = cache.self_.layers[0]
    read = n * r + (k + tail) * WIDTH if twice else n * WIDTH
    assert own.read_bytes(0, n) == 8 * (read + WIDTH)
    assert own.read_bytes(0, k) == 8 * (k + 1) * WIDTH


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_steps_can_be_recorded(form: str, twice: bool) -> None:
    """On a pretend GPU a step neither reads from the device nor copies to it."""
    dims = replace(tiny_dims(multilingual=False, text_layers=1), n_audio_ctx=12)
    spec = f"{form}:r=3,k=4,twice={twice}"
    checkpoint = Checkpoint("random", dims, random_state(dims, seed=1))
    with pretend_cuda() as gpu:
        device = torch.device("cuda", 0)
        model = Model(checkpoint, device, torch.float32, (spec, spec))
        cache = DecoderCache(model.allocate_cross(2), model.allocate_self(4))
        rows, positions = Rows.block(2, 2, device=device), torch.full((4,), 7, device=device)
        with gpu.counting() as counts:
            model.decoder.step(positions, Step.at(rows, positions, 8, False, torch.float32), cache)
    assert counts.kernels["topk"] == 4 and not counts.uploads and not counts.reads
