"""When words are spoken: whisper's own functions as the reference, in float64 to the last digit."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import whisper
import whisper.timing
from torch import Tensor, nn
from whisper.utils import get_end

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.passes import WindowSegments
from slimwhisper.options import Options
from slimwhisper.types import Segment
from slimwhisper.word_times import words
from slimwhisper.word_times.words import WordTiming, attach_words, last_word_end, warp
from tests.support.checkpoints import tiny_dims
from tests.support.scripted import BEGIN, LANGUAGES, as_dicts, random_text, segment, tokenizer

DIMS = tiny_dims()


class Scripted(nn.Module):
    """Stands in for whisper's model: its cross-attention scores and logits are given."""

    def __init__(self, scores: Tensor, logits: Tensor) -> None:
        """scores: [heads, T, 1500], all of one layer; logits: [T, V]."""
        super().__init__()
        self.attention = Echo(scores[None])
        self.decoder = SimpleNamespace(blocks=[SimpleNamespace(cross_attn=self.attention)])
        self.dims = SimpleNamespace(n_text_layer=1)
        self.device = torch.device("cpu")
        self.alignment_heads = torch.ones(1, len(scores), dtype=torch.bool).to_sparse()
        self.logits = logits

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        self.attention()
        assert tokens.shape[1] == len(self.logits)
        return self.logits[None]


class Echo(nn.Module):
    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self) -> tuple[None, Tensor]:
        return None, self.scores


def token_probs(logits: Tensor, text: Sequence[int], before: int) -> tuple[float, ...]:
    """What the engine answers: of all that is not special, each text token's probability."""
    probs = logits[before - 1 : -2, : tokenizer().eot].softmax(dim=-1)
    return tuple(probs[torch.arange(len(text)), list(text)].tolist())


def scripted(rng: random.Random, text: Sequence[int], frames: int) -> tuple[Scripted, Alignment]:
    """The same random attention for whisper and for us: in order, with noise and long pauses."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    before = 4
    length, heads = before + len(text) + 1, rng.choice((1, 3))
    spoken = max(1, frames // 2)
    times = sorted(rng.uniform(0, spoken) for _ in range(length))
    if rng.random() < 0.5:  # one pause
        cut, gap = rng.randrange(length), rng.uniform(0, spoken / 2)
        times = [t * 0.5 + (gap if i > cut else 0) for i, t in enumerate(times)]
    width = rng.choice([2.0, 6.0, 40.0])
    centers = torch.tensor(times)[:, None]
    scores = -(((torch.arange(1500) - centers) / width) ** 2)
    noise = torch.randn(heads, length, 1500, generator=generator) * rng.choice([0.1, 1.0, 4.0])
    scores = scores.clamp(min=-20)[None] + noise
    logits = torch.randn(length, DIMS.n_vocab, generator=generator)
    rows = torch.arange(before - 1, length - 2)
    logits[rows, list(text)] += 6 * torch.rand(len(text), generator=generator) + 6
    alignment = Alignment(tuple(text), before, scores, token_probs(logits, text, before))
    return Scripted(scores, logits), alignment


@pytest.mark.parametrize("rows", [1, 2, 448])
@pytest.mark.parametrize("positions", [1, 200])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_path_is_whisper_s(rows: int, positions: int, tied: bool, dtype: type) -> None:
    """Of random costs, of costs with many ties, and where some are not numbers."""
    rng = np.random.default_rng(rows * positions)
    shape = rows, positions
    for _ in range(3):
        costs = (rng.integers(-1, 2, shape) / 10 if tied else rng.normal(size=shape)).astype(dtype)
        for unknown in ((), rng.integers(positions)):
            costs[:, unknown] = np.nan
            expected = whisper.timing.dtw_cpu(costs.astype(np.float64))
            np.testing.assert_array_equal(warp(costs), expected)


def random_segments(rng: random.Random, language: str, seek: int) -> Iterator[Segment]:
    """A window's segments: their stamps need not fit the words, and some have no text."""
    at = seek / 100
    for number in range(rng.randint(1, 5)):
        start = at + rng.choice([0, 0, rng.randint(0, 200) / 50])
        at = start + rng.choice([0, rng.randint(1, 500) / 50])
        text = [] if rng.random() < 0.2 else random_text(rng, language, most=12)
        tokens = [BEGIN, *text, BEGIN + 20]
        yield segment(number, seek, start, at, tokenizer(language).decode(text), tokens)


@pytest.mark.parametrize("seed", range(30))
def test_segments_get_whisper_s_words(seed: int) -> None:
    rng = random.Random(seed)
    language = rng.choice(LANGUAGES)
    seek = rng.choice([0, rng.randint(0, 100_000)])
    segments = list(random_segments(rng, language, seek))
    text = WindowSegments(segments, 0, False).text_tokens(tokenizer(language))
    frames = rng.choice([3000, rng.randint(50, 3000)])
    model, alignment = scripted(rng, text, frames)
    last_speech = seek / 100 - rng.choice([0, rng.uniform(0, 30)])
    expected = as_dicts(segments)
    whisper.timing.add_word_timestamps(
        segments=expected,
        model=model,
        tokenizer=tokenizer(language),
        mel=torch.zeros(80, 3000),
        num_frames=frames,
        last_speech_timestamp=last_speech,
    )
    result = attach_words(
        segments, alignment if text else None, tokenizer(language), Options(), frames, last_speech
    )
    assert as_dicts(result) == expected
    assert all(s.words is not None for s in result)
    numbers = [n for s in result for n in (s.start, s.end)]
    numbers += [n for s in result for w in s.words or () for n in (w.start, w.end, w.probability)]
    assert {type(n) for n in numbers} == {float}  # not numpy's, which print in another way
    assert last_word_end(result) == get_end(expected)


def test_punctuation_is_attached_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [" Hi", ",", " (", "you", ")"]
    pieces = [tokenizer().encode(part) for part in parts]
    timings = [WordTiming(parts[i], pieces[i], i, i + 1, 0.5) for i in range(5)]
    monkeypatch.setattr(words, "time_words", lambda *_: [replace(t) for t in timings])
    whole = segment(0, 0, 0.0, 5.0, "".join(parts), [t for piece in pieces for t in piece])
    alignment = Alignment((), 4, torch.zeros(1, 1, 1), ())
    for prepend, append, expected in (
        ("(", ",)", [" Hi,", " (you)"]),
        ("", "", parts),
        ("(", "", [" Hi", ",", " (you", ")"]),
    ):
        options = Options(prepend_punctuations=prepend, append_punctuations=append)
        (result,) = attach_words([whole], alignment, tokenizer(), options, 3000, 0.0)
        assert [w.word for w in result.words or ()] == expected
