"""Where to cut a buffer that is full: behind a committed sentence, or where it is quiet."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from whisper.tokenizer import Tokenizer

from slimwhisper.engine.requests import Alignment
from slimwhisper.live.mel import LiveMel
from slimwhisper.longform.words import time_words
from slimwhisper.subtitles.endings import ends_sentence
from slimwhisper.types import FRAMES_PER_SECOND

QUIET = 5  # mel frames that are quiet together


@dataclass(frozen=True, slots=True)
class Cut:
    """What goes: the text's first tokens, and the buffer's first mel frames."""

    tokens: int
    frames: int


def choose_cut(
    alignment: Alignment | None,
    committed: int,
    mel: LiveMel,
    frames: int,
    tokenizer: Tokenizer,
) -> Cut:
    """Where to cut a buffer of which an update heard `frames` mel frames.

    alignment: of its text; None: there is none. committed: how many of the tokens are. The cut is
    behind the last sentence, else at the quietest place between two words: of those committed ones
    that end behind the first quarter. If none does, all words that have a length are as good as
    committed (words without one are no speech, but a loop), and one in the latter half is chosen.
    """
    timings = [] if alignment is None else time_words(alignment, tokenizer, frames)
    ends = list(accumulate(len(t.tokens) for t in timings))
    seconds = frames / FRAMES_PER_SECOND
    spoken = next((i for i, t in enumerate(timings) if t.end <= t.start), len(timings))
    inner = range(len(timings) - 1)  # with a word after them
    places = [i for i in inner if ends[i] <= committed and timings[i].end >= seconds / 4]
    places = places or [i for i in inner[:spoken] if timings[i].end >= seconds / 2]
    if not places:
        return Cut(ends[spoken - 1] if spoken else 0, min(frames, mel.complete))
    text = "".join(t.word for t in timings)
    before = accumulate(len(t.word) for t in timings)
    lengths = dict(enumerate(before))
    sentences = [
        i
        for i in places
        if ends_sentence(text[: lengths[i]], text[lengths[i] :], tokenizer.language or "en")
    ]

    def quietest(i: int) -> tuple[float, int]:
        """Between the middles of a word and the next: how loud it is there, and the mel frame."""
        first, last = (
            round((t.start + t.end) / 2 * FRAMES_PER_SECOND) for t in (timings[i], timings[i + 1])
        )
        first = min(first, mel.complete - QUIET)
        loud = mel.loudness(first, max(last, first + QUIET)).unfold(0, QUIET, 1).mean(dim=-1)
        at = int(torch.argmin(loud))
        return float(loud[at]), first + at + QUIET // 2

    if sentences:
        return Cut(ends[sentences[-1]], quietest(sentences[-1])[1])
    chosen = min(places, key=lambda i: quietest(i)[0])
    return Cut(ends[chosen], quietest(chosen)[1])
