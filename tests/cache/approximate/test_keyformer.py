"""Keyformer's self-attention against its Algorithm 1, as `tests/support/keyformer.py` has it."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.approximate.eviction import EvictionSettings, Noise
from slimwhisper.cache.approximate.keyformer import KeyformerLayer
from slimwhisper.cache.base import Rows, SelfLayer, Step
from slimwhisper.cache.forms import choose_forms, settings_of
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.errors import OptionError
from slimwhisper.model.calibration import exact_plan
from tests.cache.test_caches import CPU, DIMS, HEADS, LENGTH, STATE, WIDTH, noise, weights
from tests.support import keyformer as plain
from tests.support.steps import self_step

LAYER, PROMPTS, STEPS = 1, (3, 11, 7), 8  # in a budget of 6, with LENGTH = 20
TEXTS = [noise(n + STEPS, WIDTH, seed=n) * 2 for n in PROMPTS]
FULL = {name: t for name, t in STATE.items()}
for site in ("encoder.ln_post.", *(f"decoder.blocks.{i}.attn_ln." for i in range(2))):
    FULL[f"{site}weight"] = noise(WIDTH, seed=20).abs() + 0.05
    FULL[f"{site}bias"] = noise(WIDTH, seed=21)


def make(
    spec: str, rows: int = 3, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> SelfLayer:
    plan = exact_plan(FULL, DIMS, "e", spec).to(torch.device(device), dtype)
    return DecoderCache.allocate(plan, rows, 50, LENGTH).self_.layers[LAYER]


def start(layer: SelfLayer, texts: Sequence[Tensor], prompts: Sequence[int]) -> list[list[Tensor]]:
    """Prompts, padded on the right with something loud: what each row attends to."""
    padded = torch.full((len(texts), max(prompts), WIDTH), 9.0, dtype=texts[0].dtype)
    for row, (text, n) in enumerate(zip(texts, prompts, strict=True)):
        padded[row, :n] = text[:n]
    rows = Rows.of(torch.arange(len(texts)), lengths=torch.tensor(prompts))
    return [list(t[:n]) for t, n in zip(layer.prefill(padded, rows), prompts, strict=True)]


def go(layer: SelfLayer, texts: Sequence[Tensor], positions: Sequence[int], n: int) -> Tensor:
    """One step, in turn of neighbouring and of any rows: [R, d]."""
    rows = Rows.block(len(texts)) if n % 2 else Rows.of(torch.arange(len(texts)))
    step = Step.at(rows, torch.tensor(positions), max(positions) + 1, False, texts[0].dtype)
    x = torch.stack([text[p] for text, p in zip(texts, positions, strict=True)])
    return self_step(layer, x[:, None], step)[:, 0]


def run(
    layer: SelfLayer, texts: Sequence[Tensor] = TEXTS, prompts: Sequence[int] = PROMPTS
) -> list[Tensor]:
    found = start(layer, texts, prompts)
    for n in range(STEPS):
        for row, y in enumerate(go(layer, texts, [p + n for p in prompts], n)):
            found[row].append(y)
    return [torch.stack(f) for f in found]


def expected(spec: str, text: Tensor, prompt: int) -> tuple[Tensor, list[list[int]]]:
    s = settings_of(spec)
    source, every = Noise(s.seed, LAYER, HEADS, CPU), torch.arange(len(text))
    drawn = source(source.keys[:, None, None], every[:, None], every, torch.float64)
    zeta = drawn.tolist() if s.noise == "gumbel" else torch.zeros_like(drawn).tolist()
    last = s.steps or LENGTH // 2
    return plain.decode(
        weights("attn", LAYER),
        text,
        prompt,
        k=s.budget,
        w=s.window(LENGTH),
        sinks=s.sinks,
        zeta=lambda head, query, token: zeta[head][query][token],
        tau=lambda t: s.tau_init + (s.tau_end - s.tau_init) / last * min(t, last),
        shared=getattr(s, "shared", True),
    )


def held(layer: SelfLayer, row: int) -> list[list[int]]:
    assert isinstance(layer, KeyformerLayer)
    return [sorted(p for p in places if p >= 0) for places in layer.chosen.positions[row].tolist()]


SPECS = [
    "keyformer:budget=6",
    "keyformer:budget=6,steps=5,seed=3,tau_end=4.0",
    "keyformer:budget=6,shared=true",
    "keyformer:budget=6,noise=none,tau_end=1,recent=0.5",  # H2O
    "keyformer:budget=6,recent=1",  # window
    "keyformer:budget=6,recent=1,sinks=2",  # StreamingLLM
    "keyformer:budget=6,recent=0.3,sinks=2",
    "keyformer:budget=2",
    "keyformer_latent:budget=6",
    "keyformer_latent:budget=6,noise=none,tau_end=1,recent=0.5",
    "keyformer_latent:budget=6,recent=1,sinks=4",
]


@pytest.mark.parametrize("spec", SPECS)
def test_algorithm_1(spec: str) -> None:
    """Prompts below and above the budget, padded, beside each other."""
    layer = make(spec)
    for buffer in layer.tensors:  # whatever was here before
        buffer.fill_(1)
    found = run(layer)
    for row, (text, prompt) in enumerate(zip(TEXTS, PROMPTS, strict=True)):
        outputs, kept = expected(spec, text, prompt)
        torch.testing.assert_close(found[row], outputs)
        groups = held(layer, row)
        assert groups == (kept if len(groups) == HEADS else kept[:1])
        if "recent=1" in spec:
            s, now = settings_of(spec), len(text)
            assert groups[0] == [*range(s.sinks), *range(now - s.budget + s.sinks, now)]


def test_heads_choose_differently() -> None:
    _, kept = expected(SPECS[0], TEXTS[1], PROMPTS[1])
    assert len({tuple(k) for k in kept}) > 1
    _, kept = expected(SPECS[2], TEXTS[1], PROMPTS[1])
    assert len({tuple(k) for k in kept}) == 1


@pytest.mark.parametrize("spec", SPECS[::4])
def test_neighbours_do_not_matter(spec: str) -> None:
    together = run(make(spec))
    for text, prompt, found in zip(TEXTS, PROMPTS, together, strict=True):
        layer = make(spec, 1)
        for buffer in layer.tensors:  # nor does what was here before
            buffer.fill_(1)
        torch.testing.assert_close(run(layer, [text], [prompt])[0], found)


@pytest.mark.parametrize("spec", ["keyformer:budget=6", "keyformer_latent:budget=6,float8=true"])
def test_beams(spec: str) -> None:
    """Rows that become copies of others, or move, take along what was kept and its scores."""
    texts = [noise(20, WIDTH, seed=9) * 2, noise(20, WIDTH, seed=10) * 2]

    def alone(text: Tensor) -> Tensor:
        return run(make(spec, 1), [text], [9])[0]

    swapped = [torch.cat([texts[1 - i][:12], texts[i][12:]]) for i in range(2)]
    layer = make(spec, 4)
    found = start(layer, [*texts, *texts], [9] * 4)
    now = [*texts, *texts]
    for n in range(STEPS):
        if n == 3:
            layer.reorder(torch.tensor([0, 1]), torch.tensor([1, 0]), 12)
            layer.swap(2, 3)
            layer.move(2, 3)
            layer.move(0, 2)
            found = [found[1], found[0], found[1], found[3]]
            now = [swapped[0], swapped[1], swapped[0], now[3]]
            layer.prefill(noise(1, 15, WIDTH), Rows.of(torch.tensor([3])))  # another text
            layer.reorder(torch.tensor([3]), torch.tensor([1]), LENGTH)
            found[3], now[3] = list(found[1]), swapped[1]
            found = [list(f) for f in found]
        for row, y in enumerate(go(layer, now, [9 + n] * 4, n)):
            found[row].append(y)
    for row, text in enumerate(now):
        torch.testing.assert_close(torch.stack(found[row]), alone(text))
    assert isinstance(layer, KeyformerLayer)
    torch.testing.assert_close(layer.chosen.scores[[0, 1]], layer.chosen.scores[[2, 3]])


@pytest.mark.parametrize("spec", ["keyformer:budget=6", "keyformer_latent:budget=6"])
def test_padding_without_lengths(spec: str) -> None:
    """Whoever does not say how long prompts are: their padding is at least never read."""
    layer, text = make(spec, 1), TEXTS[0]
    padded = torch.cat([text[:3], torch.full((8, WIDTH), 9.0, dtype=text.dtype)])
    layer.prefill(padded[None], Rows.of(torch.arange(1)))
    for n in range(STEPS):
        go(layer, [text], [3 + n], n)
        assert isinstance(layer, KeyformerLayer)
        last = 3 + n
        for places in layer.chosen.positions[0].tolist():
            tokens = sorted(p for p in places if 0 <= p <= last)
            assert last in tokens and len(set(tokens)) == len(tokens)
            if n >= 6:
                assert min(tokens) >= 0 and len(tokens) == 6


def test_a_seed_is_a_choice() -> None:
    def kept(seed: int) -> list[list[int]]:
        layer = make(f"keyformer:budget=6,seed={seed}")
        run(layer)
        return held(layer, 1)

    assert kept(0) == kept(0) != kept(1)


def test_gumbel_noise() -> None:
    """Its mean is Euler's constant and its variance pi^2 / 6; no number depends on its neighbours,
    and heads, layers, queries, tokens and seeds each have their own.
    """
    drawn = Noise(0, 0, 4, CPU)
    queries, tokens = torch.arange(-50, 150)[:, None], torch.arange(200)
    many = drawn(drawn.keys[:, None, None], queries, tokens, torch.float32)
    assert many.shape == (4, 200, 200) and torch.isfinite(many).all()
    assert float(many.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(many.var()) == pytest.approx(math.pi**2 / 6, rel=0.02)
    assert len(many.unique()) > 0.98 * many.numel()
    one = drawn(drawn.keys[2], torch.tensor(149), torch.tensor(7), torch.float32)
    assert one == many[2, 199, 7]
    correlations = torch.corrcoef(many.flatten(1))
    assert float((correlations - torch.eye(4)).abs().max()) < 0.02
    others = {int(Noise(s, i, 1, CPU).keys[0]) for s in range(3) for i in range(3)}
    assert len(others) == 9


def test_the_temperature_grows_from_1_to_2() -> None:
    """Section 3.2: tau_init = 1 in the prompt, tau_end = 2 after T steps."""
    layer = make("keyformer:steps=8")
    assert isinstance(layer, KeyformerLayer)
    found = layer.chosen.temperature(torch.tensor([0, 1, 2, 4, 8, 9, 100])).tolist()
    assert found == [1.0, 1.125, 1.25, 1.5, 2.0, 2.0, 2.0]
    layer = make("keyformer")
    assert isinstance(layer, KeyformerLayer)
    assert layer.chosen.duration == LENGTH // 2
    run(layer)
    assert layer.chosen.steps.tolist() == [STEPS] * 3


@pytest.mark.parametrize(
    ("budget", "recent", "window"),
    [(60, 0.2, 12), (60, 0.3, 18), (64, 0.25, 16), (64, 1.0, 60), (None, 0.3, 134), (2, 0.2, 1)],
)
def test_the_recent_window(budget: int | None, recent: float, window: int) -> None:
    """20 to 30 % of the budget, beside the sinks."""
    sinks = 4 if recent == 1 else 0
    assert EvictionSettings(budget, recent, sinks).window(448) == window


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("budget=1", "budget=1: give at least 2 tokens, or all"),
        ("recent=0", "recent=0.0: give a share of the budget, above 0 up to 1"),
        ("recent=30", "recent=30.0: give a share"),
        ("budget=4,sinks=4", "sinks=4: give 0 or more, but less than the budget"),
        ("noise=gauss", "noise=gauss: give one of gumbel, none"),
        ("tau_end=0", "tau_init and tau_end: give temperatures above 0"),
        ("steps=0", "steps=0: give at least 1, or all"),
        ("seed=-1", "seed=-1: give 0 or more"),
    ],
)
def test_settings_that_make_no_sense(settings: str, message: str) -> None:
    for name in ("keyformer", "keyformer_latent"):
        with pytest.raises(OptionError, match=message):
            choose_forms(self_cache=f"{name}:{settings}")


def test_what_is_kept_and_read() -> None:
    """A budget of k tokens allocates k, with their scores and positions, and a row's steps."""
    half, k, d = torch.float16, 8, WIDTH
    small = {
        "keyformer:budget=8": 2 * k * d * 2 + HEADS * k * (4 + 2) + 2,
        "keyformer:budget=8,shared=true": 2 * k * d * 2 + k * (4 + 2) + 2,
        "keyformer_latent:budget=8": k * d * 2 + k * (4 + 2) + 2,
        "keyformer_latent:budget=8,float8=true": k * (d + 4) + k * (4 + 2) + 2,
    }
    for spec, each in small.items():
        layer = make(spec, 3, half)
        assert layer.nbytes() == 3 * each
        assert [layer.read_bytes(0, n) for n in (2, 8, 20)] == [each / 4, each, each]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["keyformer", "keyformer_latent"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    """A window chooses alike in every dtype."""
    spec = f"{name}:budget=6,recent=1,sinks=1"
    exact = torch.cat(run(make(spec)))
    found = torch.cat(run(make(spec, dtype=dtype), [t.to(dtype) for t in TEXTS]))
    assert found.dtype == dtype
    error = (found.double() - exact).norm() / exact.norm()
    assert error < {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]


def test_float8() -> None:
    """As `x8` while nothing is evicted; afterwards as without rounding, nearly."""
    norm = FULL["encoder.ln_post.weight"], FULL["encoder.ln_post.bias"]
    texts = [torch.nn.functional.layer_norm(t, (WIDTH,), *norm) for t in TEXTS]
    everything = run(make("keyformer_latent:budget=all,float8=true"), texts)
    torch.testing.assert_close(everything, run(make("x8"), texts))
    window = "keyformer_latent:budget=6,recent=1,sinks=1"
    found, exact = (torch.cat(run(make(window + s), texts)) for s in (",float8=true", ""))
    assert 1e-5 < (found - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("spec", ["keyformer:budget=6", "keyformer_latent:budget=6,float8=true"])
def test_nothing_asks_the_device(spec: str) -> None:
    """Tensors without contents: reading one on the host would fail."""
    layer = make(spec, 4, torch.float32, "meta")
    layer.prefill(torch.zeros(4, 9, WIDTH, device="meta"), Rows.block(4, device="meta"))
    for rows in (Rows.block(4, device="meta"), Rows.of(torch.arange(4, device="meta"))):
        positions = torch.zeros(4, dtype=torch.int64, device="meta")
        step = Step.at(rows, positions, 12, False, torch.float32)
        assert self_step(layer, torch.zeros(4, 1, WIDTH, device="meta"), step).shape == (
            4,
            1,
            WIDTH,
        )
