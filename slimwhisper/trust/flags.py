"""The flags of a window's segments, by its texts and its sound. No model runs, and no text changes.

How much of a window has sound is read from its spectrogram. Levels do not tell speech from music.
They do tell both from silence and steady noise, where Whisper invents text.
"""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slimwhisper.subtitles.cues import HAN, HANGUL, KANA, THAI_TO_KHMER, letters_of, words
from slimwhisper.trust import REASONS
from slimwhisper.types import FRAMES_PER_SECOND, Segment

UNSPACED = letters_of(*THAI_TO_KHMER, *KANA, *HAN)
_TOKEN = re.compile(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+")
_CHARACTER = re.compile(f"[{UNSPACED}]")
_APOSTROPHES = str.maketrans("", "", "'’ʼ`´")


@lru_cache(maxsize=256)  # each flag compares the same texts
def tokens_of(text: str) -> tuple[str, ...]:
    """The words of a text, and its characters in scripts without spaces; without case, punctuation
    and variants of characters.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return tuple(_TOKEN.findall(plain))


def weight(token: str) -> float:
    """The words in a token: a Chinese word has about two characters."""
    return 0.5 if _CHARACTER.match(token) else 1.0


# A second of the fastest ordinary speech has about ten syllables: languages differ between 5 and 8
# on average (Coupé et al. 2019, Science Advances 5, eaaw2594), and fast speakers exceed the average
# by about a third. A syllable is a Chinese or Korean character, a kana, about three letters
# elsewhere; a digit has at least one.
LETTERS, SYLLABLES, DIGITS = 30.0, 12.0, 10.0  # most in a second
_SYLLABIC = re.compile(f"[{letters_of(*KANA, *HAN, *HANGUL)}]")


def least_seconds(text: str) -> float:
    """A lower bound of the seconds to speak a text; 0 for a text without letters or digits."""
    seconds = 0.0
    for character in text:
        if character.isascii():
            if character.isalpha():
                seconds += 1 / LETTERS
            elif character.isdigit():
                seconds += 1 / DIGITS
        elif _SYLLABIC.match(character):
            seconds += 1 / SYLLABLES
        elif unicodedata.category(character).startswith("L"):
            seconds += 1 / LETTERS
    return seconds


MIN_LETTERS = 8  # fewer may be a name


def is_foreign(text: str, language: str) -> bool:
    """Whether most letters of a text are in scripts that its language does not use.

    language: a code of Whisper's. False for texts under eight letters.
    """
    expected = words("scripts", language) or {"LATIN"}
    if text.isascii() and "LATIN" in expected:
        return False
    scripts = Counter(_script(character) for character in text if character.isalpha())
    letters = scripts.total()
    return letters >= MIN_LETTERS and 2 * sum(scripts[s] for s in expected) < letters


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").removeprefix("FULLWIDTH ").split()[0]


MAX_PERIOD = 40  # tokens; longer loops show in the compression ratio
# "no, no, no" and a chorus are not loops
MIN_REPEATS, MIN_WORDS = 4, 8  # words in all
MIN_LONG_REPEATS, MIN_LONG_WORDS = 3, 6  # words of each repeat


def loops(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The stretches [start, stop) of tokens that repeat the same words: at least four times, with
    eight words in all, or at least three times, with six words each. They may overlap.
    """
    if len(tokens) < MIN_WORDS:
        return
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(token, len(numbers)) for token in tokens])
    weights = list(accumulate(map(weight, tokens), initial=0.0))
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_LONG_REPEATS) + 1):
        same = ids[period:] == ids[:-period]
        if np.count_nonzero(same) < max((MIN_LONG_REPEATS - 1) * period, MIN_WORDS - period):
            continue
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2).tolist():
            times = (stop - start) / period + 1
            words = weights[start + period] - weights[start]
            total = weights[stop + period] - weights[start]
            if (times >= MIN_REPEATS and total >= MIN_WORDS) or (
                times >= MIN_LONG_REPEATS and words >= MIN_LONG_WORDS
            ):
                yield start, stop + period


def looping(texts: Sequence[str]) -> list[bool]:
    """For each of some consecutive texts, whether at least half of it is in a loop, within the text
    or with its neighbours.
    """
    parts = [tokens_of(text) for text in texts]
    tokens = [token for part in parts for token in part]
    inside = np.zeros(len(tokens), dtype=bool)
    for start, stop in loops(tokens):
        inside[start:stop] = True
    ends = np.array([0, *accumulate(map(len, parts))])
    counts = np.concatenate([[0], inside.cumsum()])[ends]
    looped = np.diff(counts).tolist()  # tokens of each text
    return [bool(part) and 2 * n >= len(part) for part, n in zip(parts, looped, strict=True)]


TABLE = Path(__file__).with_name("phrases.toml")
MAX_OTHER_TOKENS = 8  # of a credit, before or after its phrase: names, a year


def is_credit(text: str) -> bool:
    """Whether a text is one of the table's credits, with at most a few words around it."""
    tokens = tokens_of(text)
    return any(
        tokens[i : i + len(phrase)] == phrase and len(tokens) <= len(phrase) + MAX_OTHER_TOKENS
        for i, token in enumerate(tokens)
        for phrase in _by_first_token("credits").get(token, ())
    )


def is_common(text: str) -> bool:
    """Whether a text is nothing but one of the table's common phrases, once or repeated."""
    tokens = tokens_of(text)
    return any(
        tokens == phrase * (len(tokens) // len(phrase))
        for phrase in (_by_first_token("common").get(tokens[0], ()) if tokens else ())
    )


@cache
def _by_first_token(kind: str) -> dict[str, list[tuple[str, ...]]]:
    by_token: dict[str, list[tuple[str, ...]]] = {}
    for phrases in tomllib.loads(TABLE.read_text(encoding="utf-8"))[kind].values():
        for tokens in map(tokens_of, phrases):
            by_token.setdefault(tokens[0], []).append(tokens)
    return by_token


BACKGROUND_QUANTILE = 0.1  # of the levels of a window's frames
RISE = 6.0  # dB over the background; steady noise stays within three
INAUDIBLE = -60.0  # dB: lower backgrounds do not matter
REACH = 10  # mel frames of 10 ms before and after sound, for the dips within words


def has_sound(mel: Tensor) -> Tensor:
    """A window's log-mel spectrogram [n_mels, frames], as Whisper normalises it, without padding
    -> bool [frames]: whether a frame is louder than the window's background.
    """
    if mel.shape[1] == 0:
        return torch.zeros(0, dtype=torch.bool)
    power = (mel.float() * 4 - 4) * (torch.log(torch.tensor(10.0)))  # whisper: (log10 + 4) / 4
    level = 10 * power.logsumexp(dim=0) / torch.log(torch.tensor(10.0))
    level -= 10 * torch.log10(torch.tensor(float(mel.shape[0])))  # the bins' mean
    background = level.quantile(BACKGROUND_QUANTILE).clamp(min=INAUDIBLE - RISE)
    loud = (level > background + RISE).float()
    width = 2 * REACH + 1
    return torch.nn.functional.max_pool1d(loud[None], width, stride=1, padding=REACH)[0] > 0


def window_sound(mel: Callable[[], Tensor], offset: float) -> Callable[[float, float], float]:
    """How many seconds between two times of the recording have sound, of those in a window.

    mel: returns [n_mels, frames], without padding; it is called when this is first asked. offset:
    of its start, in seconds.
    """
    frames = cache(lambda: has_sound(mel()))

    def seconds(start: float, end: float) -> float:
        first, last = (max(round((t - offset) * FRAMES_PER_SECOND), 0) for t in (start, end))
        return float(frames()[first:last].sum()) / FRAMES_PER_SECOND

    return seconds


COMPRESSION_RATIO = 2.4  # above: the window's text repeats itself; whisper's threshold
LOGPROB = -0.8  # average below; whisper's threshold is -1.0, and good text lies above -0.5
WORD_PROBABILITY = 0.7  # mean below, where words have probabilities
NO_SPEECH = 0.5  # probability above: evidence of silence; whisper's threshold is 0.6
SLACK = 0.5  # seconds of error in a segment's times
SLOW = 0.1  # of the fastest speech: slower than any speech
MIN_SOUND = 4.0  # seconds, for a text to be too short for it
CERTAIN_LANGUAGE = 0.8  # probability of a window's language above which a change is certain
NEIGHBOURS = 8  # segments before a window to look for loops in


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """What is known of a window besides its text."""

    sound: Callable[[float, float], float]  # seconds of sound between two times of the recording
    language: str | None = None  # code: of the text, if known
    changed: bool = False  # the language differs from that of the window before, and is uncertain
    voiced: Callable[[float, float], bool] | None = None  # between two times; None: not known


def flagged(
    segments: Sequence[Segment], evidence: WindowEvidence, before: Sequence[Segment]
) -> list[Segment]:
    """A window's segments with their flags. `before`: those of the windows before it."""
    neighbours = [*before[-NEIGHBOURS:], *segments]
    loops = looping([s.text for s in neighbours])[len(neighbours) - len(segments) :]
    pairs = zip(segments, loops, strict=True)
    return [_with(s, _flags(s, evidence) | ({"repeats"} if loop else set())) for s, loop in pairs]


def with_loops(segments: Sequence[Segment]) -> list[Segment]:
    """All segments of a recording, with the flags of loops that continue in later segments."""
    loops = looping([s.text for s in segments])
    pairs = zip(segments, loops, strict=True)
    return [_with(s, {*s.flags, "repeats"}) if loop and s.text.strip() else s for s, loop in pairs]


def _with(segment: Segment, names: set[str]) -> Segment:
    flags = tuple(name for name in REASONS if name in names)
    return segment if flags == segment.flags else replace(segment, flags=flags)


def _flags(segment: Segment, evidence: WindowEvidence) -> set[str]:
    text, flags = segment.text, set[str]()
    if not text.strip():
        return flags
    if segment.compression_ratio > COMPRESSION_RATIO:
        flags.add("repeats")
    length, least = segment.end - segment.start, least_seconds(text)
    if least > length + SLACK:
        flags.add("too_fast")
    if length >= MIN_SOUND and least < SLOW * length:
        sound = evidence.sound(segment.start, segment.end)
        if sound >= MIN_SOUND and least < SLOW * sound:
            flags.add("too_few_words")
    voiced = evidence.voiced and evidence.voiced(segment.start, segment.end)
    doubtful = segment.no_speech_prob > NO_SPEECH or segment.avg_logprob < LOGPROB
    common = not voiced and is_common(text) and _over_silence(segment, least, evidence)
    if not least or is_credit(text) or common or (voiced is False and doubtful):
        flags.add("invented")
    if evidence.changed or (evidence.language is not None and is_foreign(text, evidence.language)):
        flags.add("language_changed")
    words = segment.words or ()  # they may have probabilities
    mean_is_low = sum(w.probability for w in words) < WORD_PROBABILITY * len(words)
    if segment.avg_logprob < LOGPROB or mean_is_low:
        flags.add("improbable")
    return flags


def _over_silence(segment: Segment, least: float, evidence: WindowEvidence) -> bool:
    """Whether there is evidence that a common phrase was not spoken: no speech by the model, or
    less sound than the phrase takes, or far more time.
    """
    return (
        segment.no_speech_prob > NO_SPEECH
        or max(least, SLOW * MIN_SOUND) < SLOW * (segment.end - segment.start)
        or evidence.sound(segment.start, segment.end) < least
    )


MISSED = 2.0  # seconds of speech without text that are worth a flag


def with_gaps(
    segments: Sequence[Segment], speech: Callable[[float, float], float], length: float
) -> list[Segment]:
    """All segments of a recording of `length` seconds, with a flag of those beside speech without
    text. speech: seconds of it between two times.
    """
    marked, texts = list(segments), [i for i, s in enumerate(segments) if s.text.strip()]
    ends = [0.0, *(segments[i].end for i in texts)]
    starts = [*(segments[i].start for i in texts), length]
    for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
        if texts and speech(end, start) > MISSED:
            i = texts[max(number - 1, 0)]
            marked[i] = _with(marked[i], {*marked[i].flags, "text_missing"})
    return marked
