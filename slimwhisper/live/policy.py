"""The commit policy: which text of an update is final while speech continues; and where a full
buffer is cut, after a committed sentence, or where it is quiet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import torch

from slimwhisper.engine.requests import Alignment
from slimwhisper.live.mel import LiveMel
from slimwhisper.subtitles.cues import ends_sentence
from slimwhisper.tokens.vocabulary import Tokenizer
from slimwhisper.types import FRAMES_PER_SECOND
from slimwhisper.word_times.words import time_words

# encoder positions of 20 ms at the end of the audio: a word that attends to them is not committed
KNOWN_MARGIN = 20  # if the update before had it too
NEW_MARGIN = 40
# To hold back new words below a probability of 0.5 was tried on 2,101 words of base in English,
# French, Italian and Russian: 323 errors instead of 324, and p95 half a second later. Once updates
# had what was said before, on 559 words in Italian: 81 instead of 83, and p50 0.08 s later.
# To decode a whole utterance again at its end, without its committed text, was tried on 562 words
# in Spanish: 70 errors instead of 71.
REWIND_FRAMES = 50  # one second; not in the paper. Words that overlap in time go back less


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A word, or a punctuation mark, as the tokenizer splits texts."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # the tokens'


def committable(
    words: Sequence[TextPiece], previous: Sequence[TextPiece], attended: list[int], positions: int
) -> int:
    """How many words can be committed, by AlignAtt (Papi et al., arXiv 2305.11408): those before
    the first one that attends to the newest audio, as its sound may not be complete, or far back: a
    loop. A word that the update before has at the same place, but for case and punctuation, is
    trusted earlier, which is from LocalAgreement (Macháček et al., arXiv 2307.14743).

    Arguments:
        words: an update's text after the tokens committed before it.
        previous: the same of the update before.
        attended: the encoder position that each token of `words` attends to most.
        positions: the number of them that hold audio.
    """
    before = filter(None, (letters_of(word.text) for word in previous))
    rest, latest = iter(attended), 0
    for index, word in enumerate(words):
        letters = letters_of(word.text)
        known = not letters or next(before, None) == letters
        end = positions - (KNOWN_MARGIN if known else NEW_MARGIN)
        for position in islice(rest, len(word.tokens)):
            if position >= end or position < latest - REWIND_FRAMES:
                return index
            latest = max(latest, position)
    return len(words)


def letters_of(word: str) -> str:
    """A word without case and punctuation."""
    return "".join(filter(str.isalnum, word.casefold()))


HALF_WORD = 0.2  # seconds, at most
QUIET_FRAMES = 5  # successive mel frames whose loudness is averaged


@dataclass(frozen=True, slots=True)
class BufferCut:
    """How many of the text's first tokens and of the buffer's first mel frames to remove."""

    tokens: int
    frames: int


def choose_cut(
    alignment: Alignment | None, committed: int, mel: LiveMel, frames: int, tokenizer: Tokenizer
) -> BufferCut:
    """Where to cut a buffer of which an update decoded `frames` mel frames.

    alignment: of its text; None: it has no text. committed: the number of tokens that are
    committed. The cut is after the last sentence, else at the quietest point between two words,
    among the committed words that end after the first quarter. If there are none, it is after a
    word in the second half, committed or not; words of zero length are a loop, and do not count.
    """
    timings = [] if alignment is None else time_words(alignment, tokenizer, frames)
    ends = list(accumulate(len(t.tokens) for t in timings))
    seconds = frames / FRAMES_PER_SECOND
    timed_words = next((i for i, t in enumerate(timings) if t.end <= t.start), len(timings))
    followed = range(len(timings) - 1)
    candidates = [i for i in followed if ends[i] <= committed and timings[i].end >= seconds / 4]
    candidates = candidates or [i for i in followed[:timed_words] if timings[i].end >= seconds / 2]
    if not candidates:
        return BufferCut(ends[timed_words - 1] if timed_words else 0, min(frames, mel.complete))
    text = "".join(t.word for t in timings)
    text_ends = list(accumulate(len(t.word) for t in timings))
    language = tokenizer.language or "en"
    sentences = [
        i for i in candidates if ends_sentence(text[: text_ends[i]], text[text_ends[i] :], language)
    ]

    def quietest(i: int) -> tuple[float, int]:
        """The loudness and the frame of the quietest point between the middles of two words, which
        have their pauses with them.
        """
        word, after = timings[i], timings[i + 1]
        earliest = max((word.start + word.end) / 2, word.end - HALF_WORD)
        latest = min((after.start + after.end) / 2, after.start + HALF_WORD)
        start, stop = round(earliest * FRAMES_PER_SECOND), round(latest * FRAMES_PER_SECOND)
        start = min(start, mel.complete - QUIET_FRAMES)
        power = mel.loudness(start, max(stop, start + QUIET_FRAMES))
        means = power.unfold(0, QUIET_FRAMES, 1).mean(dim=-1)
        offset = int(torch.argmin(means))
        return float(means[offset]), start + offset + QUIET_FRAMES // 2

    chosen = sentences[-1] if sentences else min(candidates, key=lambda i: quietest(i)[0])
    return BufferCut(ends[chosen], quietest(chosen)[1])
