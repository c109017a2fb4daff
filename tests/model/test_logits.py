"""Logits of every cache form against openai-whisper's modules in float64.

The rule, in every dtype: the error is at most twice openai-whisper's own in that dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.forms import PRESETS
from slimwhisper.guard import guarded_plan, record_activations
from slimwhisper.model import decoder
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.layers import Residual
from slimwhisper.model.model import Model
from tests.support.cache_forms import caches
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.few_tokens import DIMS, TEXTS, random_checkpoint
from tests.support.marks import slow
from tests.support.reference import set_spectrum, whisper_logits, whisper_model

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# every cross form and every self form, and the presets
FORMS = (*PRESETS.values(), ("v", "x"), ("hybrid", "x"), ("e", "v"), ("k", "kv"), ("kv", "x"))
# width, heads: those of tiny and large
TINY, LARGE = (384, 6), (1280, 20)


def texts(rows: int, seed: int = 0) -> list[list[int]]:
    """Token sequences of different lengths: prompts of 3, 8, 5, ... tokens and 4 more."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [4 + (3, 8, 5, 12)[i % 4] for i in range(rows)]
    return [torch.randint(0, TEXTS, (n,), generator=generator).tolist() for n in lengths]


def features_like_encoder_output(slots: int, frames: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(slots, frames, width, generator=generator)
    return torch.nn.functional.layer_norm(noise, (width,))


def cached_logits(
    model: Model, features: Tensor | Sequence[Tensor], sequences: list[list[int]], group: int = 1
) -> list[Tensor]:
    """Logits [T, V] of each row: prompts of different lengths together, then 4 single steps.
    features [p, d], perhaps of different lengths p.
    """
    slots, frames = len(features), max(map(len, features))
    cache = caches(model.plan, slots, frames, model.dims.n_text_ctx, group)
    earlier = torch.full((frames, features[0].shape[1]), 9.0).to(features[0])
    for slot, window in enumerate(features):
        cache.cross.put(torch.tensor([slot]), earlier[None])
        cache.cross.put(torch.tensor([slot]), window[None])
    prompts = [s[:-4] for s in sequences]
    longest = max(map(len, prompts))
    padded = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts])
    every = Rows.block(slots, group)
    hidden = model.decoder.prefill(padded, Rows(every.ids, every.slots), cache)
    results = [[model.decoder.logits(hidden[i, : len(p)])] for i, p in enumerate(prompts)]
    for n in range(4):
        positions = torch.tensor([len(p) + n for p in prompts])
        tokens = torch.tensor([s[len(p) + n] for s, p in zip(sequences, prompts, strict=True)])
        extent = int(positions.max()) + 1
        full = len(set(positions.tolist())) == 1
        step = DecodeStep.at(every, positions, extent, full, model.dtype)
        for row, logits in enumerate(model.decoder.step(tokens, step, cache)):
            results[row].append(logits[None])
    return [torch.cat(parts).double() for parts in results]


def errors(result: list[Tensor], true: list[Tensor]) -> tuple[float, float]:
    """(root mean square, largest) over all rows, positions and tokens."""
    difference = torch.cat(result) - torch.cat(true)
    return float(difference.pow(2).mean().sqrt()), float(difference.abs().max())


def assert_within_rule(result: list[Tensor], plain: list[Tensor], true: list[Tensor]) -> None:
    """`plain` is openai-whisper in the same dtype, `true` in float64."""
    for ours, theirs in zip(errors(result, true), errors(plain, true), strict=True):
        assert ours <= 2 * theirs


class Case:
    """One checkpoint, its texts and audio, and the reference logits by dtype."""

    def __init__(
        self, width: int, heads: int, condition: float, slots: int, group: int, frames: int = 400
    ) -> None:
        """frames: of the encoder's output, in float32; half precision is slow on a CPU."""
        made = random_checkpoint(tiny_dims(width=width, heads=heads), seed=width)
        self.dims, state = made.dims, set_spectrum(dict(made.state), made.dims, condition)
        self.checkpoint = replace(made, state=state)
        self.texts = texts(slots * group)
        self.group = group
        self.slots, self.frames = slots, frames
        self.plain = whisper_model(self.dims, state)
        self.wide = whisper_model(self.dims, state, torch.float64)
        self.activations = record_activations(self.checkpoint)
        self.known: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def model(self, dtype: torch.dtype, forms: tuple[str, str]) -> Model:
        # what the guard measures on is the same for every form and dtype: recorded once
        with patch("slimwhisper.guard.record_activations", return_value=self.activations):
            return Model(self.checkpoint, CPU, dtype, forms, guarded_plan)

    def features(self, dtype: torch.dtype) -> Tensor:
        frames = 200 if dtype == torch.float16 else self.frames
        return features_like_encoder_output(self.slots, frames, self.dims.n_text_state).to(dtype)

    def references(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        """(openai-whisper in the dtype, in float64), computed once."""
        if dtype not in self.known:
            features = self.features(dtype)
            rows = [(t, features[i // self.group]) for i, t in enumerate(self.texts)]
            plain = [whisper_logits(self.plain, t, f) for t, f in rows]
            self.known[dtype] = plain, [whisper_logits(self.wide, t, f.double()) for t, f in rows]
        return self.known[dtype]


@pytest.fixture(scope="module")
def official() -> Callable[..., Case]:
    return lru_cache(maxsize=1)(partial(Case, condition=3.0, slots=3, group=1))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (TINY, torch.float32),
        *slow((TINY, torch.float16), (TINY, torch.bfloat16), (LARGE, torch.bfloat16)),
    ],
    ids=str,
)
def test_every_form_at_official_shapes(
    official: Callable[..., Case], shape: tuple[int, int], dtype: torch.dtype
) -> None:
    case = official(*shape)
    plain, true = case.references(dtype)
    # every form, and at the larger shape some; the last two mix them once more
    for forms in FORMS[: -2 : 5 if shape == LARGE else 2]:
        model = case.model(dtype, forms)
        assert not model.plan.fallbacks, "well-conditioned weights need no fall-back"
        result = cached_logits(model, case.features(dtype), case.texts)
        assert_within_rule(result, plain, true)


@pytest.fixture(scope="module")
def beams() -> Case:
    return Case(128, 2, condition=3.0, slots=3, group=2, frames=300)


@pytest.mark.parametrize(
    ("forms", "dtype"),
    [
        *((forms, torch.float64) for forms in FORMS),
        *((forms, dtype) for forms in PRESETS.values() for dtype in DTYPES[::2]),
    ],
    ids=str,
)
def test_rows_that_share_a_slot(beams: Case, forms: tuple[str, str], dtype: torch.dtype) -> None:
    """Within the rule, and exact in float64."""
    plain, true = beams.references(dtype)
    model = beams.model(dtype, forms)
    result = cached_logits(model, beams.features(dtype), beams.texts, group=2)
    if dtype == torch.float64:
        assert errors(result, true)[1] < 1e-11
    else:
        assert_within_rule(result, plain, true)


@pytest.mark.parametrize(
    ("forms", "dtype"),
    [*((forms, torch.float64) for forms in FORMS[::2]), (FORMS[0], torch.float32)],
    ids=str,
)
def test_windows_as_long_as_their_audio(
    beams: Case, forms: tuple[str, str], dtype: torch.dtype
) -> None:
    """Each text reads its own window's audio alone, whatever the slot had before."""
    windows = [f[:n] for f, n in zip(beams.features(dtype), (50, 300, 1), strict=True)]
    model = beams.model(dtype, forms)
    result = cached_logits(model, windows, beams.texts, group=2)
    true = [
        whisper_logits(beams.wide, text, windows[i // 2].double())
        for i, text in enumerate(beams.texts)
    ]
    assert errors(result, true)[1] < (1e-11 if dtype == torch.float64 else 1e-4)
    if dtype == torch.float32:
        whole = cached_logits(model, beams.features(dtype), beams.texts, group=2)
        assert errors(whole, true)[1] > 1e-2


@lru_cache
def conditioned(condition: float) -> Case:
    return Case(128, 2, condition, slots=2, group=1, frames=300)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("condition", [1e4, 1.4e7])
def test_the_guard_keeps_every_preset_exact(condition: float, dtype: torch.dtype) -> None:
    """On weights where, unguarded, option 1 is not."""
    case = conditioned(condition)
    plain, true = case.references(dtype)
    for forms in (*PRESETS.values(), ("v", "v"), ("hybrid", "x")):
        model = case.model(dtype, forms)
        result = cached_logits(model, case.features(dtype), case.texts)
        assert_within_rule(result, plain, true)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_zeros_do_not_change_the_logits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; nothing looks behind the last token."""
    dims, state = DIMS, random_checkpoint(seed=3).state
    hidden = torch.randn(3, dims.n_text_state, generator=torch.Generator().manual_seed(0)).to(dtype)
    plain = Decoder(state, dims, CPU, dtype)
    assert decoder.padding(dims.n_vocab, CPU) == 0
    missing = decoder.padding(dims.n_vocab, torch.device("cuda"))
    assert 0 < missing < decoder.ROWS and (dims.n_vocab + missing) % decoder.ROWS == 0
    monkeypatch.setattr(decoder, "padding", lambda *_: missing)
    padded = Decoder(state, dims, CPU, dtype)
    result, expected = padded.logits(hidden), plain.logits(hidden)
    assert result.shape == expected.shape == (3, dims.n_vocab)
    assert result.stride() == (dims.n_vocab + missing, 1)
    torch.testing.assert_close(result, expected)
    tokens = torch.tensor([0, dims.n_vocab - 1])
    assert torch.equal(padded.embed(tokens, tokens % 5), plain.embed(tokens, tokens % 5))


def test_every_layer_reads_rows_in_order() -> None:
    """The convolutions leave the channels outermost, in which every layer would be slower. In
    float64, as C runs the blocks in float32.
    """
    dims = tiny_dims(width=64, heads=1, audio_layers=3)
    encoder = Encoder(random_state(dims, seed=0), dims, torch.device("cpu"), torch.float64)
    seen: list[tuple[int, ...]] = []

    def watch(block):  # type: ignore[no-untyped-def]
        def run(stream: Residual) -> None:
            seen.append(stream.x.stride())
            block(stream)

        return run

    encoder.blocks = [watch(block) for block in encoder.blocks]
    mel = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(1))
    features = encoder(mel)
    assert seen == [(1500 * 64, 64, 1)] * 3
    assert features.is_contiguous()


@pytest.mark.parametrize("forms", [*PRESETS.values(), ("v", "x"), ("kv", "x")], ids=str)
def test_some_positions_of_a_prompt(forms: tuple[str, str]) -> None:
    """They and the caches are as with all positions. The last layer's cross-attention and MLP see
    them alone.
    """
    dims, model = DIMS, Model(random_checkpoint(), CPU, torch.float64, forms, guarded_plan)
    features = features_like_encoder_output(2, 30, dims.n_audio_state).double()
    tokens, positions = torch.tensor(texts(8)[3:8:4]), torch.tensor([[0, 11], [7, 15]])
    rows, found, flops = Rows(*torch.arange(2).repeat(2, 1)), list[Tensor](), list[int]()
    for wanted in (None, positions):
        cache = caches(model.plan, 2, 30, dims.n_text_ctx)
        cache.cross.put(torch.arange(2), features)
        with FlopCounterMode(display=False) as counter:
            hidden = model.decoder.prefill(tokens, rows, cache, positions=wanted)
        step = DecodeStep.at(rows, torch.tensor([16, 16]), 17, True, torch.float64)
        found += [hidden, model.decoder.step(tokens[:, 0], step, cache)]
        flops.append(counter.get_total_flops())
    every, next_logits, some, same_logits = found
    torch.testing.assert_close(some, every[torch.arange(2)[:, None], positions])
    torch.testing.assert_close(next_logits, same_logits)
    width = dims.n_text_state
    assert flops[0] - flops[1] >= 2 * 2 * 14 * (8 * width**2 + 2 * width**2)
