"""When words are spoken: whisper's own functions as the reference, in float64 to the last digit."""

import importlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.timing
from torch import Tensor, nn
from whisper.decoding import DecodingResult
from whisper.utils import get_end

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.passes import DecodedWindow, WindowSegments, WindowSpan
from slimwhisper.options import Options
from slimwhisper.types import Segment
from slimwhisper.word_times import words
from slimwhisper.word_times.words import WordTiming, attach_words, last_word_end, time_segments
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
            np.testing.assert_array_equal(words.warp(costs), expected)


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
    marks = {
        name: rng.choice([getattr(Options, name), "", "([", ",)"])
        for name in ("append_punctuations", "prepend_punctuations")
    }
    expected = as_dicts(segments)
    whisper.timing.add_word_timestamps(
        segments=expected,
        model=model,
        tokenizer=tokenizer(language),
        mel=torch.zeros(80, 3000),
        num_frames=frames,
        last_speech_timestamp=last_speech,
        **marks,
    )
    aligned, options = alignment if text else None, Options(**marks)
    result = attach_words(segments, aligned, tokenizer(language), options, frames, last_speech)
    assert as_dicts(result) == expected
    assert all(s.words is not None for s in result)
    numbers = [n for s in result for n in (s.start, s.end)]
    numbers += [n for s in result for w in s.words or () for n in (w.start, w.end, w.probability)]
    assert {type(n) for n in numbers} == {float}  # not numpy's, which print in another way
    assert last_word_end(result) == get_end(expected)


# whisper's whole loop on scripts: `time_segments` goes on from each window as the loop does


whisper_transcribe = importlib.import_module("whisper.transcribe")  # the name is a function's too


def random_answer(rng: random.Random) -> list[int]:
    """Tokens of one window, with and without timestamps, pairs, and a single one at the end."""
    tokens: list[int] = []
    at = rng.choice([0, 0, rng.randint(0, 600)])
    for _ in range(rng.randint(1, 5)):
        end = min(1500, at + rng.choice([0, rng.randint(1, 100), rng.randint(100, 400)]))
        text = [] if rng.random() < 0.15 else random_text(rng, "en", most=9)
        tokens += [BEGIN + at, *text, BEGIN + end]
        at = min(1500, end + rng.choice([0, 0, rng.randint(0, 300)]))
    kind = rng.random()
    if kind < 0.4:
        tokens.append(tokens[-1])
    elif kind < 0.55:
        tokens += [BEGIN + at, *tokenizer().encode(" and so")]
    elif kind < 0.65:
        tokens = [t for t in tokens if t < BEGIN]
    return tokens


def random_timings(rng: random.Random, text: Sequence[int], frames: int) -> list[WordTiming]:
    """Word times in order, in runs of ordinary ones and runs of strange ones."""
    spelled, pieces = tokenizer().split_to_word_tokens([*text, tokenizer().eot])
    timings = []
    at = rng.choice([0.0, rng.uniform(0, 8)])
    strange = rng.random() < 0.5
    for word, tokens in zip(spelled[:-1], pieces[:-1], strict=True):
        if rng.random() < 0.15:
            strange = not strange
            at += rng.choice([0, rng.uniform(0, 4)])
        length = rng.choice([0.02, 3.0, 0.4]) if strange else rng.uniform(0.14, 0.5)
        end = min(at + length, frames / 100)
        start, end = (np.float64(round(t * 50) / 50) for t in (at, end))
        probability = rng.uniform(0, 0.2) if strange else rng.uniform(0.3, 1)
        timings.append(WordTiming(word, tokens, start, end, np.float64(probability)))
        at = float(end)
    if rng.random() < 0.3:  # the text ends near the window's end
        late = max(0.0, round((frames / 100 - at - rng.uniform(0, 4.5)) * 50) / 50)
        timings = [replace(t, start=t.start + late, end=t.end + late) for t in timings]
    return timings


class Loop:
    """One run of `whisper.transcribe` on a script, its windows noted down."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.content = self.rng.choice([self.rng.randint(100, 3000), self.rng.randint(3000, 15000)])
        self.threshold = self.rng.choice([None, 0.1, 1.0, 2.0, 4.0])
        self.windows: list[dict[str, Any]] = []
        self.seeks: list[int] = []
        count = torch.arange(self.content + 3000, dtype=torch.float32)  # a frame shows its number
        mel = count.expand(80, -1)
        monkeypatch.setattr(whisper_transcribe, "log_mel_spectrogram", lambda *_, **__: mel)
        monkeypatch.setattr(whisper.timing, "find_alignment", self.find_alignment)
        monkeypatch.setattr(whisper_transcribe, "add_word_timestamps", self.add_word_timestamps)
        self.result = whisper.transcribe(
            self,
            np.zeros(0, np.float32),
            language="en",
            fp16=False,
            word_timestamps=True,
            hallucination_silence_threshold=self.threshold,
        )
        self.seeks.append(self.content)

    dims = tiny_dims()
    device = torch.device("cpu")
    is_multilingual = True
    num_languages = 99

    def decode(self, mel: Tensor, options: Any) -> DecodingResult:
        """whisper's model is asked for a window."""
        self.seeks.append(int(mel[0, 0]))
        silent = len(self.seeks) > 40  # a script that never gets on comes to an end
        self.tokens = random_answer(self.rng)
        return DecodingResult(
            audio_features=mel,
            language="en",
            tokens=self.tokens,
            avg_logprob=-2.0 if silent else -0.5,
            no_speech_prob=1.0 if silent else 0.0,
            compression_ratio=1.0,
        )

    def find_alignment(
        self, model: Any, tokenizer: Any, text: list[int], mel: Tensor, frames: int
    ) -> list[WordTiming]:
        self.timings = random_timings(self.rng, text, frames) if text else []
        return [replace(t) for t in self.timings]

    def add_word_timestamps(self, **arguments: Any) -> None:
        raw = [dict(s) for s in arguments["segments"]]
        whisper.timing.add_word_timestamps(**arguments)
        self.windows.append(
            {
                "segments": [Segment(id=0, **s) for s in raw],
                "tokens": self.tokens,
                "timings": self.timings,
                "frames": arguments["num_frames"],
                "last_speech": arguments["last_speech_timestamp"],
                "number": len(self.seeks) - 1,  # among `seeks`
            }
        )


def after_stamps(tokens: Sequence[int], seek: int, frames: int) -> tuple[int, bool]:
    """Where the timestamps say to go on, and whether a single one ends the window."""
    stamped = [t >= BEGIN for t in tokens]
    single = stamped[-2:] == [False, True]
    pairs = [i for i in range(1, len(tokens)) if stamped[i - 1] and stamped[i]]
    if not pairs or single:
        return seek + frames, single
    return seek + 2 * (tokens[pairs[-1] - 1] - BEGIN), single


def cleared(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """As whisper's loop does at the end of a window."""
    empty = {"text": "", "tokens": [], "words": []}
    gone = (s.start == s.end or not s.text.strip() for s in segments)
    return as_dicts([replace(s, **empty) if g else s for s, g in zip(segments, gone, strict=True)])


def replay(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """`time_segments` on each window of the loop gives what whisper's loop went on with."""
    branches: Counter[str] = Counter()
    options = Options(word_timestamps=True, hallucination_silence_threshold=loop.threshold)
    expected = loop.result["segments"]
    alignment = Alignment((), 4, torch.zeros(1, 1, 1), ())  # stands for the scripted word times
    results: list[dict[str, Any]] = []
    for i, window in enumerate(loop.windows):
        monkeypatch.setattr(words, "time_words", lambda *_, w=window: [*map(replace, w["timings"])])
        seek = loop.seeks[window["number"]]
        proposed, single = after_stamps(window["tokens"], seek, window["frames"])
        decoded = DecodedWindow(
            WindowSpan(seek, window["frames"], loop.content, 3_000),
            mel=lambda: torch.zeros(80, 3_000),
            tokenizer=tokenizer(),
            before=(),
            alignment=alignment if window["timings"] else None,
            last_speech=window["last_speech"],
        )
        cut = WindowSegments(window["segments"], proposed, single)
        settled = time_segments(options, cut, decoded)
        following = loop.seeks[window["number"] + 1]
        assert settled.seek == following or settled.seek >= following == loop.content
        if i + 1 < len(loop.windows):
            assert settled.last_speech == loop.windows[i + 1]["last_speech"]
        results += cleared(settled.segments)
        assert not (settled.dropped and settled.segments)
        branches["dropped"] += settled.dropped
        cut = not settled.dropped and len(settled.segments) < len(window["segments"])
        branches["cut"] += cut
        branches["cut to the end"] += cut and settled.seek == loop.content
        branches["last word"] += not cut and not settled.dropped and settled.seek != proposed
        branches["kept"] += settled.seek == proposed
    assert [{**s, "id": i} for i, s in enumerate(results)] == expected
    return branches


def test_a_window_goes_on_as_in_whisper_s_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    branches: Counter[str] = Counter()
    thresholds = set()
    for seed in range(120):
        with monkeypatch.context() as patch:
            loop = Loop(seed, patch)
            branches += replay(loop, patch)
        thresholds.add(loop.threshold)
    assert thresholds == {None, 0.1, 1.0, 2.0, 4.0}
    assert set(branches) == {"dropped", "cut", "cut to the end", "last word", "kept"}
    assert min(branches.values()) >= 6, branches
