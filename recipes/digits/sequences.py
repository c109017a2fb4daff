"""Windows of joined words: the audio, and the tokens that a Whisper decoder should answer with.

A pause of PAUSE seconds or more starts a new segment; without one, a segment ends with the first
word that ends LONGEST seconds or more after its start. Start and end tokens are the words' own
times, rounded to 0.1 s. A word that the window's end cuts off ends the segment before it and gets
only a start, as in Whisper's training (Radford et al. 2022, section 2.3), so that the next window
begins before it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from recipes.digits.noise import background, coloration, faster, reverberated, tilted, worn
from recipes.digits.voices import RATE, WORDS, Bank, Samples
from slimwhisper.audio.mel import HALF, log_mel
from slimwhisper.types import HOP_SAMPLES

PAUSE = 0.5  # seconds
LONGEST = 6.0  # seconds, about
REAL_SHARE = 0.6  # of the windows: those of recorded speech
PROMPT_SHARE = 0.6  # of the windows
NO_TIMES_SHARE = 0.3  # of the answers
OFTEN = {"fsdd": 2.0, "rhvoice": 3.0, "pico": 3.0}  # how often a voice is drawn; others: 1
TOKEN_IDS = (  # of Whisper's English vocabulary: " zero" to " nine", the special ones, the times
    *(6632, 530, 734, 1115, 1440, 1936, 2237, 3598, 3624, 5193),
    *(50256, 50257, 50360, 50361, 50362),
    *range(50363, 51864),
)
# The embedding rows in use, in the order of TOKEN_IDS; UNKNOWN is any token not used here.
END, SOT, PREVIOUS, NO_SPEECH, NO_TIMES = range(10, 15)
TIME = 15
UNKNOWN = len(TOKEN_IDS)
IGNORED = -100  # a target without loss


class SpokenDigit(NamedTuple):
    """One word of a window."""

    digit: int
    start: float  # seconds in the window
    end: float


class Window(NamedTuple):
    """The spectrogram of a window, and the words in it."""

    mel: Tensor  # [80, frames]
    words: list[SpokenDigit]
    content: float  # seconds of it that hold audio
    offset: float  # seconds: where it starts within the 30 s
    labels: Tensor  # [3, frames / 2] int64: the word's digit, and those of the two before; 10: none
    edges: Tensor  # [frames / 2] int64: 0 none, 1 a word's first 60 ms, 2 inside, 3 its last 60 ms


class Reply(NamedTuple):
    """What the decoder should answer to a window."""

    tokens: list[int]  # rows of TOKEN_IDS, prompt included
    targets: list[int]  # the correct next token for each
    spans: list[tuple[int, int]]  # audio positions that determine each target; (0, 0): none


def arrange(
    rng: Generator, lengths: Sequence[float], lead: float, pauses: float
) -> list[tuple[float, float]]:
    """Times (start, end) of words of these lengths, with random gaps and, at a rate, pauses."""
    times: list[tuple[float, float]] = []
    at = lead
    for length in lengths:
        if times:
            pause = rng.random() < pauses
            at += PAUSE + 0.1 + min(rng.exponential(0.6), 4.0) if pause else rng.uniform(0, 0.35)
        times.append((at, at + length))
        at += length
    return times


def segments(words: Sequence[SpokenDigit]) -> list[list[SpokenDigit]]:
    """The words between pauses, in runs of about LONGEST seconds at most."""
    stretches: list[list[SpokenDigit]] = []
    for word in words:
        near = stretches and word.start - stretches[-1][-1].end < PAUSE
        if near and stretches[-1][-1].end - stretches[-1][0].start < LONGEST:
            stretches[-1].append(word)
        else:
            stretches.append([word])
    return stretches


def spelled(words: Iterable[SpokenDigit]) -> str:
    """The words as text."""
    return " ".join(WORDS[word.digit] for word in words)


def answer(
    words: Sequence[SpokenDigit], length: float, offset: float = 0.0, times: bool = True
) -> tuple[list[int], list[tuple[float, float]]]:
    """Tokens for a window of `length` seconds, and the time span that determines each."""
    tokens: list[int] = []
    spans: list[tuple[float, float]] = []

    def say_time(seconds: float, before: float, after: float) -> None:  # rounded to 0.1 s
        if times:
            tokens.append(TIME + min(round((seconds + offset) * 10) * 5, 1500))
            spans.append((seconds - before, seconds + after))

    shown = [w for w in words if w.start < length - 0.03]
    if not times:  # a word counts only if most of it is there
        shown = [w for w in shown if w.end - length < 0.4 * (w.end - w.start)]
    for segment in segments(shown):
        whole = [w for w in segment if not times or w.end < length + 0.03]
        if whole:
            say_time(whole[0].start, 0.06, 0.1)
            tokens += [word.digit for word in whole]
            spans += [(word.start, word.end) for word in whole]
            say_time(whole[-1].end, 0.1, 0.06)
        if len(whole) < len(segment):
            say_time(segment[len(whole)].start, 0.06, 0.1)
    return [*tokens, END], [*spans, (0.0, 0.0)]


def labelled(words: Sequence[SpokenDigit], positions: int) -> tuple[Tensor, Tensor]:
    """A window's labels [3, positions] and edges [positions], int64, as in `Window`."""
    labels = torch.full((3, positions), IGNORED)
    labels[0] = 10
    edges = torch.zeros(positions, dtype=torch.long)
    for i, word in enumerate(words):
        start, end = round(word.start * 50), max(round(word.end * 50), 1)
        for back in range(3):
            labels[back, start:end] = words[i - back].digit if i >= back else 10
        edges[start:end] = 2
        edges[start : start + 3] = 1
        edges[max(end - 3, 0) : end] = 3
    return labels, edges


class Composer:
    """Random windows from a bank of words."""

    def __init__(self, bank: Bank) -> None:
        self.bank, kinds = bank, [name.split(":")[0] for name in bank.names]
        self.voices = [np.flatnonzero(bank.voices.numpy() == i) for i in range(len(kinds))]
        self.weights = np.array([OFTEN.get(kind, 1.0) for kind in kinds])
        recorded = np.array([kind == "fsdd" for kind in kinds])
        for some, share in ((recorded, REAL_SHARE), (~recorded, 1 - REAL_SHARE)):
            self.weights[some] *= share / max(self.weights[some].sum(), 1.0)
        self.weights /= self.weights.sum()
        self.digits = bank.digits.numpy()

    def _voice(self, rng: Generator) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """The words [n] of a random voice, as indices into the bank."""
        return self.voices[rng.choice(len(self.voices), p=self.weights)]

    def window(self, rng: Generator, seconds: float, *, anywhere: bool = True) -> Window:
        """A window of `seconds`, up to 30. anywhere: a shorter one may lie anywhere in the 30
        seconds, else it is the first part.
        """
        content = seconds if rng.random() < 0.6 else rng.uniform(0.15, 1.0) * seconds
        start = not anywhere or seconds == 30 or rng.random() < 0.3
        offset = 0.0 if start else round(rng.uniform(0, 30 - seconds), 1)
        quiet = rng.random() < 0.06
        words, audio = list[SpokenDigit](), np.zeros(round(content * RATE), np.float32)
        if not quiet:
            words, audio = self._speech(rng, content, cut=content == seconds)
        audio = background(rng, audio, quiet)
        mel = self._mel(rng, audio, round(seconds * 100), quiet)
        return Window(mel, words, content, offset, *labelled(words, mel.shape[1] // 2))

    def _speech(
        self, rng: Generator, content: float, cut: bool
    ) -> tuple[list[SpokenDigit], Samples]:
        kind = rng.random()  # as many words as fit, some, or a few and then silence
        most = 1000 if cut and kind < 0.5 else 12 if kind < 0.75 else 3
        limit = most if most == 1000 else int(rng.integers(1, most + 1))
        lead = rng.uniform(0, 1.0) if rng.random() < 0.75 else rng.uniform(0, 0.3 * content)
        rarest = 0.02 if content > 12 else 0.25  # so that short windows also have whole segments
        pauses = rng.uniform(rarest, 0.9)
        alone, again = rng.random() < 0.6, rng.random() * 0.2
        voice = self._voice(rng)
        pace = 2 ** rng.uniform(-0.25, 0.25) if rng.random() < 0.6 else 1.0
        chosen: list[int] = []
        total = lead
        while len(chosen) < limit and total < content + 1:
            if not alone and rng.random() < 0.3:
                voice = self._voice(rng)
            i = int(voice[rng.integers(len(voice))])
            if chosen and rng.random() < again:  # repeated digits are easily lost
                same = voice[self.digits[voice] == self.digits[chosen[-1]]]
                i = int(same[rng.integers(len(same))]) if len(same) else i
            chosen.append(i)
            total += (int(self.bank.starts[i + 1]) - int(self.bank.starts[i])) / RATE / pace
        hiss = 10 ** (-rng.uniform(8, 35) / 20) if rng.random() < 0.35 else 0.0
        pieces = [worn(rng, faster(self.bank.word(i), pace), hiss) for i in chosen]
        times = arrange(rng, [len(p) / RATE for p in pieces], lead, pauses)
        audio = np.zeros(round(content * RATE), np.float32)
        words: list[SpokenDigit] = []
        muffled = rng.random() < 0.5  # telephone bandwidth, whatever the voice
        gain = rng.uniform(0.3, 1.0)
        for i, piece, (start, end) in zip(chosen, pieces, times, strict=True):
            if start >= content - 0.03 or (not cut and end > content):
                break
            at = round(start * RATE)
            louder = np.float32(gain * 10 ** rng.uniform(-0.3, 0.3))
            audio[at : at + len(piece)] += piece[: len(audio) - at] * louder
            words.append(SpokenDigit(int(self.digits[i]), start, end))
        if rng.random() < 0.3 and lead > 0.12:  # the end of a word from before the window
            tail = self.bank.word(int(voice[rng.integers(len(voice))]))
            tail = tail[-int(rng.integers(1, RATE // 12)) :]
            audio[: len(tail)] += gain * tail[: len(audio)]
        audio = tilted(rng, audio, muffled)
        return words, reverberated(rng, audio) if rng.random() < 0.2 else audio

    def _mel(self, rng: Generator, audio: Samples, frames: int, quiet: bool) -> Tensor:
        """Whisper's log-mel spectrogram [80, frames] of a window of a longer recording; audio [n].

        Its floor depends on the recording's loudest point, which may be outside the window. What
        follows a recording's end is 0 in `transcribe` and silence in `decode`.
        """
        if rng.random() < 0.25:
            audio = np.pad(audio, (0, frames * HOP_SAMPLES - len(audio)))
        log = log_mel(np.pad(audio, HALF, "reflect"), 80)[:, :-1]
        if rng.random() < 0.7:  # the response of a microphone and a vocal tract
            log = log + torch.from_numpy(coloration(rng))[:, None]
        louder = rng.uniform(0, 4 if quiet else 1) if rng.random() < 0.3 else 0.0
        log = torch.maximum(log, log.max() + louder - 8.0)
        if rng.random() < 0.4:  # some bands hidden, as in SpecAugment (Park et al. 2019)
            bands = int(rng.integers(2, 13))
            first = int(rng.integers(0, 80 - bands))
            log[first : first + bands] = log.mean()
        return torch.nn.functional.pad((log + 4.0) / 4.0, (0, frames - log.shape[1]))

    def reply(self, rng: Generator, window: Window) -> Reply:
        """One answer to `window`, with or without times, with or without a prompt."""
        words, positions = window.words, window.edges.shape[0]
        times = rng.random() >= NO_TIMES_SHARE
        prompt = self._prompt(rng, times) if rng.random() < PROMPT_SHARE else []
        head = [*prompt, SOT] if times else [*prompt, SOT, NO_TIMES]
        if words:
            text_tokens, seconds = answer(words, window.content, window.offset, times)
            targets = text_tokens
        else:
            first = TIME + 5 * int(rng.integers(11))
            text_tokens, targets = ([first, END], [NO_SPEECH, END]) if times else ([END], [END])
            seconds = [(0.0, 0.0)] * len(text_tokens)
        skipped = len(head) - 1
        spans = [(max(round(a * 50), 0), min(round(b * 50), positions)) for a, b in seconds]
        expected = [IGNORED] * skipped + targets
        if not times:  # the position before <|notimestamps|> learns whether there is speech, too
            expected[skipped - 1] = IGNORED if words else NO_SPEECH
        return Reply([*head, *text_tokens[:-1]], expected, [(0, 0)] * skipped + spans)

    def _prompt(self, rng: Generator, times: bool) -> list[int]:
        """Text before the window: tokens of earlier windows, or only words."""
        tokens: list[int] = []
        unknown = rng.random() < 0.1
        again = rng.random() * 0.2
        for _ in range(int(rng.integers(1, 6))):
            count = int(rng.integers(1, 45))
            digits = rng.integers(0, 10, count)
            for i in np.flatnonzero(rng.random(count) < again).tolist():
                digits[i] = digits[i - 1]
            spans = arrange(rng, rng.uniform(0.2, 0.7, count).tolist(), 0.5, rng.random())
            words = [SpokenDigit(int(d), a, b) for d, (a, b) in zip(digits, spans, strict=True)]
            text_tokens, _ = answer(words, 30.0, times=times and rng.random() < 0.8)
            tokens += text_tokens[:-1]
        if unknown:
            tokens = [UNKNOWN if rng.random() < 0.7 else t for t in tokens[: rng.integers(1, 12)]]
        longest = 223 if rng.random() < 0.6 else int(rng.integers(2, 100))
        return [PREVIOUS, *tokens[-longest:]]
