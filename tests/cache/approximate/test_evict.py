"""Frames that are no longer read, against `tests/support/keyformer.py`."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.approximate.evict import EvictCross, EvictStore
from slimwhisper.cache.approximate.eviction import Noise
from slimwhisper.cache.base import Rows
from slimwhisper.cache.forms import choose_forms, settings_of
from slimwhisper.cache.plan import CachePlan, CrossCache
from slimwhisper.errors import OptionError
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.model.calibration import exact_plan
from tests.cache.approximate.test_keyformer import FULL
from tests.cache.test_caches import CPU, DIMS, FRAMES, HEADS, LENGTH, WIDTH, noise, weights
from tests.support import keyformer as plain

LAYERS, PROMPTS, STEPS, BUDGET = 2, (3, 1, 5), 6, 12
AUDIO = noise(3, FRAMES, WIDTH, seed=2)
ASKED = [[noise(n + STEPS, WIDTH, seed=10 * n + i) * 2 for n in PROMPTS] for i in range(LAYERS)]
SPECS = [f"evict:budget={BUDGET},after={n}" for n in (0, 2, 4)] + [
    f"evict:budget={BUDGET},after=2,noise=none",
    f"evict:budget={BUDGET},after=0,seed=4,tau=2.0",
]


def plan(spec: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> CachePlan:
    """device "cuda": computed on the CPU, by the way of a GPU."""
    made = exact_plan(FULL, DIMS, spec, "x")
    if device == "meta":
        return made.to(torch.device("meta"), dtype)
    kernels = Kernels(CPU, dtype)
    kernels.device = torch.device(device)
    return replace(made.to(CPU, dtype), kernels=kernels)


def prompt(
    cache: CrossCache, prompts: tuple[int, ...], rows: Rows, texts: list[int]
) -> list[Tensor]:
    """Each layer's outputs of padded prompts, [R, T, d]."""
    found = []
    for layer, asked in zip(cache.layers, ASKED, strict=True):
        x = torch.full((len(prompts), max(prompts), WIDTH), 9.0, dtype=torch.float64)
        for row, (n, text) in enumerate(zip(prompts, texts, strict=True)):
            x[row, :n] = asked[text][:n]
        found.append(layer.attend(x, replace(rows, lengths=torch.tensor(prompts))))
    return found


def run(cache: CrossCache, chosen: list[int]) -> list[list[Tensor]]:
    """Prompts and steps of some of the windows: outputs [n, d] by layer and window."""
    count, prompts = len(chosen), tuple(PROMPTS[i] for i in chosen)
    every = torch.arange(count)
    cache.put(every, AUDIO[chosen])
    prompt(cache, prompts, Rows.of(every), chosen)  # an earlier text
    for layer in cache.layers:
        layer.step(torch.ones(count, 1, WIDTH, dtype=torch.float64), Rows.block(count))
    outputs = [
        [list(y[:n]) for y, n in zip(layer, prompts, strict=True)]
        for layer in prompt(cache, prompts, Rows.of(every), chosen)
    ]
    for n in range(STEPS):
        rows = Rows.block(count) if n % 2 else Rows.of(every)
        for i, layer in enumerate(cache.layers):
            x = torch.stack([ASKED[i][w][PROMPTS[w] + n] for w in chosen])
            for row, y in enumerate(layer.step(x[:, None], rows)):
                outputs[i][row].append(y[0])
    return [[torch.stack(y) for y in layer] for layer in outputs]


def expected(spec: str, window: int) -> tuple[list[Tensor], list[int]]:
    s = settings_of(spec)
    queries, frames = torch.arange(-8, 8)[:, None], torch.arange(FRAMES)
    zeta = []
    for layer in range(LAYERS):
        source = Noise(s.seed, layer, HEADS, CPU)
        drawn = source(source.keys[:, None, None], queries, frames, torch.float64)
        zeta.append((drawn if s.noise == "gumbel" else drawn * 0).tolist())
    return plain.read_audio(
        [weights("cross_attn", i) for i in range(LAYERS)],
        AUDIO[window],
        [asked[window] for asked in ASKED],
        PROMPTS[window],
        budget=s.budget,
        after=s.after,
        zeta=lambda layer, head, query, frame: zeta[layer][head][query + 8][frame],
        tau=s.tau,
    )


def store(cache: CrossCache) -> EvictStore:
    (found,) = cache.stores
    assert isinstance(found, EvictStore)
    return found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("spec", SPECS)
def test_algorithm_1(spec: str, device: str) -> None:
    """Both ways to read what is kept, of windows whose prompts differ."""
    cache = CrossCache(plan(spec, device=device), 3, FRAMES)
    found = run(cache, [0, 1, 2])
    for window in range(3):
        outputs, frames = expected(spec, window)
        for layer in range(LAYERS):
            torch.testing.assert_close(found[layer][window], outputs[layer])
        assert len(frames) == BUDGET
        kept = (store(cache).scores[window] >= 0).nonzero().flatten()
        assert kept.tolist() == frames
        if store(cache).copies:
            assert torch.equal(store(cache).kept.values[window], AUDIO[window, frames])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("spec", SPECS[:2])
def test_neighbours_do_not_matter(spec: str, device: str) -> None:
    together = run(CrossCache(plan(spec, device=device), 3, FRAMES), [0, 1, 2])
    for window in range(3):
        alone = run(CrossCache(plan(spec, device=device), 1, FRAMES), [window])
        for layer in range(LAYERS):
            torch.testing.assert_close(together[layer][window], alone[layer][0])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_windows_that_choose_at_different_times(device: str) -> None:
    """One window is in its steps already when another's prompt is read; slots move meanwhile."""
    spec = f"evict:budget={BUDGET},after=3"
    cache = CrossCache(plan(spec, device=device), 3, FRAMES)
    outputs: list[list[list[Tensor]]] = [[[] for _ in range(3)] for _ in range(LAYERS)]
    taken = [0, 0]

    def begin(window: int, slot: int) -> None:
        slots = torch.tensor([slot])
        cache.put(slots, AUDIO[window : window + 1])
        for i, y in enumerate(prompt(cache, (PROMPTS[window],), Rows.of(slots), [window])):
            outputs[i][window] += list(y[0])
        taken[window] = PROMPTS[window]

    def step(windows: list[int], rows: Rows) -> None:
        for i, layer in enumerate(cache.layers):
            x = torch.stack([ASKED[i][w][taken[w]] for w in windows])
            for w, y in zip(windows, layer.step(x[:, None], rows), strict=True):
                outputs[i][w].append(y[0])
        for w in windows:
            taken[w] += 1

    begin(0, 0)
    step([0], Rows.block(1))
    step([0], Rows.block(1))
    begin(1, 1)
    step([0, 1], Rows.block(2))
    step([0, 1], Rows.block(2))
    cache.swap(0, 1)
    cache.move(1, 2)
    step([0, 1], Rows.of(torch.arange(2), torch.tensor([2, 0])))
    step([0], Rows.block(1, first_slot=2))
    step([1], Rows.block(1))
    step([1], Rows.block(1))
    for window in range(2):
        for layer, exact in enumerate(expected(spec, window)[0]):
            found = torch.stack(outputs[layer][window])
            torch.testing.assert_close(found, exact[: len(found)])


@pytest.mark.parametrize("spec", SPECS[:2])
def test_beams_share_what_was_chosen(spec: str) -> None:
    """Three equal beams choose as one does, whether they lie side by side or not."""
    alone = run(CrossCache(plan(spec), 1, FRAMES), [0])
    for block in (True, False):
        cache = CrossCache(plan(spec), 2, FRAMES)
        cache.put(torch.tensor([1]), AUDIO[:1])
        prompt(cache, PROMPTS[:1], Rows.of(torch.tensor([0]), torch.tensor([1])), [0])
        rows = Rows.block(1, 3, first_slot=1)
        rows = rows if block else Rows.of(rows.ids, rows.slots)
        for n in range(STEPS):
            for i, layer in enumerate(cache.layers):
                x = ASKED[i][0][PROMPTS[0] + n].expand(3, 1, -1)
                for y in layer.step(x, rows):
                    torch.testing.assert_close(y[0], alone[i][0][PROMPTS[0] + n])
        assert store(cache).steps.tolist()[1] == (3 if "after=2" in spec else 0)


def test_beams_that_differ_all_have_a_say() -> None:
    """Their scores are the mean of what each would give alone."""
    x, found = noise(2, 1, WIDTH, seed=8), []
    for rows, asked in (
        (Rows.block(1), x[:1]),
        (Rows.block(1), x[1:]),
        (Rows.block(1, 2), x),
        (Rows.of(torch.arange(2), torch.zeros(2, dtype=torch.int64)), x),
    ):
        cache = CrossCache(plan(SPECS[2]), 1, FRAMES)
        cache.put(torch.tensor([0]), AUDIO[:1])
        for layer in cache.layers:
            layer.step(asked, rows)
        found.append(store(cache).scores)
    torch.testing.assert_close(found[2], (found[0] + found[1]) / 2)
    torch.testing.assert_close(found[3], found[2])


def test_all_frames_are_there_for_word_timestamps() -> None:
    """Scores are of all frames, and a new text in the slot sees all of them."""
    heads, x = torch.tensor([2, 0]), noise(3, 5, WIDTH, seed=5)
    rows = Rows.of(torch.arange(3), lengths=torch.tensor([5, 5, 5]))
    exact = CrossCache(plan("e"), 3, FRAMES)
    exact.put(torch.arange(3), AUDIO)
    for spec in SPECS[:2]:
        cache = CrossCache(plan(spec), 3, FRAMES)
        run(cache, [0, 1, 2])
        for ours, other in zip(cache.layers, exact.layers, strict=True):
            torch.testing.assert_close(ours.scores(x, rows, heads), other.scores(x, rows, heads))
            torch.testing.assert_close(ours.attend(x, rows), other.attend(x, rows))


def test_what_is_kept_and_read() -> None:
    """All of E and what is copied of it are kept; a step reads the copy, or all on a GPU that
    counts steps.
    """
    half, e, kept = torch.float16, FRAMES * WIDTH * 2, BUDGET * WIDTH * 2
    for spec, device, each, read in (
        (SPECS[0], "cpu", e + kept, kept),
        (SPECS[0], "cuda", e + kept, kept),
        (SPECS[1], "cpu", e + kept, kept),
        (SPECS[1], "cuda", e, e + FRAMES * 4 + 4),
    ):
        cache = CrossCache(plan(spec, half, device), 2, FRAMES)
        assert cache.nbytes() == 2 * (each + FRAMES * 4 + 4)
        assert cache.layers[1].read_bytes(0) == read
    for spec in ("evict:budget=all", f"evict:budget={FRAMES + 1}", "evict"):
        cache = CrossCache(plan(spec, half), 2, FRAMES)
        assert cache.nbytes() == 2 * e and cache.layers[1].read_bytes(1) == e
    cache = CrossCache(plan(f"{SPECS[0]},float8=true", half), 2, FRAMES)
    assert cache.nbytes() == 2 * ((FRAMES + BUDGET) * (WIDTH + 4) + FRAMES * 4 + 4)


@pytest.mark.parametrize(
    ("spec", "device"), [(SPECS[0], "cpu"), (SPECS[0], "cuda"), (SPECS[1], "cpu")]
)
def test_a_step_reads_the_copy_alone(spec: str, device: str) -> None:
    cache = CrossCache(plan(spec, device=device), 2, FRAMES)
    run(cache, [0, 1])
    store(cache).latent.values.fill_(float("nan"))
    for layer in cache.layers:
        assert torch.isfinite(layer.step(noise(2, 1, WIDTH), Rows.block(2))).all()


def test_float8() -> None:
    """As `e8` in the prompt; the kept frames are copied, not rounded again."""
    spec, norm = SPECS[0], (FULL["encoder.ln_post.weight"], FULL["encoder.ln_post.bias"])
    features = torch.nn.functional.layer_norm(AUDIO, (WIDTH,), *norm)
    found = []
    for form in (f"{spec},float8=true", "e8"):
        cache = CrossCache(plan(form), 3, FRAMES)
        cache.put(torch.arange(3), features)
        found.append(prompt(cache, PROMPTS, Rows.of(torch.arange(3)), [0, 1, 2])[1])
        if form != "e8":
            kept = (store(cache).scores >= 0).nonzero()[:, 1].view(3, BUDGET)
            slots = torch.arange(3)[:, None]
            whole = store(cache).latent.plain(torch.float64)[slots, kept]
            assert torch.equal(store(cache).kept.plain(torch.float64), whole)
            layer = cache.layers[0]
            assert torch.isfinite(layer.step(noise(3, 1, WIDTH), Rows.block(3))).all()
    for row, n in enumerate(PROMPTS):
        torch.testing.assert_close(found[0][row, :n], found[1][row, :n])


@pytest.mark.parametrize("after", [0, 2])
def test_nothing_asks_the_device(after: int) -> None:
    """Tensors without contents: reading one on the host would fail."""
    cache = CrossCache(
        plan(f"evict:budget={BUDGET},after={after}", torch.float16, "meta"), 4, FRAMES
    )
    features = torch.zeros(4, FRAMES, WIDTH, device="meta", dtype=torch.float16)
    rows = Rows.block(4, device="meta")
    cache.put(rows.slots, features)
    for length in (3, 1, 1):
        lengths = torch.zeros(4, device="meta", dtype=torch.int64) if length == 3 else None
        x = torch.zeros(4, length, WIDTH, device="meta", dtype=torch.float16)
        for layer in cache.layers:
            for r in (rows, Rows.of(rows.ids)):
                answer = layer.step if lengths is None else layer.attend
                assert answer(x, replace(r, lengths=lengths)).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("after", [0, 1])
def test_dtypes(after: int, dtype: torch.dtype) -> None:
    """From the same choice: the outputs of a step are those of `e` over the kept frames."""
    cache = CrossCache(plan(f"evict:budget={BUDGET},after={after}", dtype), 3, FRAMES)
    exact = CrossCache(plan("e"), 3, BUDGET)
    rows, x = Rows.block(3), noise(3, 1, WIDTH, seed=7)
    cache.put(rows.slots, AUDIO.to(dtype))
    for layer in cache.layers:
        layer.attend(noise(3, 2, WIDTH, seed=6).to(dtype), rows)
    for layer in cache.layers:
        layer.step(x.to(dtype), rows)
    frames = (store(cache).scores >= 0).nonzero()[:, 1].view(3, BUDGET)
    exact.put(rows.slots, AUDIO[torch.arange(3)[:, None], frames])
    for ours, other in zip(cache.layers, exact.layers, strict=True):
        found, true = ours.step(x.to(dtype), rows), other.attend(x, rows)
        assert found.dtype == dtype
        error = (found.double() - true).norm() / true.norm()
        assert error < {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("budget=0", "budget=0: give at least 1 frame, or all"),
        ("after=-1", "after=-1: give 0 or more steps"),
        ("tau=0", "tau=0.0: give a temperature above 0"),
        ("noise=some", "noise=some: give one of gumbel, none"),
        ("seed=-2", "seed=-2: give 0 or more"),
    ],
)
def test_settings_that_make_no_sense(settings: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_forms(cross_cache=f"evict:{settings}")


def test_layers_share_one_store() -> None:
    cache = CrossCache(plan(SPECS[0]), 1, FRAMES)
    first, last = cache.layers
    assert isinstance(first, EvictCross) and isinstance(last, EvictCross)
    assert first.store is last.store and not first.last and last.last
    assert LENGTH and not torch.equal(first.noise.keys, last.noise.keys)
