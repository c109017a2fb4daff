"""When the words of an update are spoken."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from whisper.tokenizer import Tokenizer

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.words import attach_words, compile_warping
from slimwhisper.types import FRAMES_PER_SECOND, Options, Segment, Word


def words_of(
    texts: Sequence[Sequence[int]],
    alignment: Alignment,
    tokenizer: Tokenizer,
    frames: int,
    offset: float,
) -> list[list[Word]]:
    """The words of successive texts, token ids that are together the alignment's.

    A mark that follows a word belongs to it, in whichever text it is. frames: mel frames of the
    recording in the window. offset: seconds before the window.
    """
    end = frames / FRAMES_PER_SECOND
    blank = Segment(0, 0, 0.0, end, "", [], 0.0, 0.0, 0.0, 0.0)
    segments = [replace(blank, tokens=list(tokens)) for tokens in texts]
    timed = attach_words(segments, alignment, tokenizer, Options(), frames, last_speech=0.0)
    return [[_moved(word, offset) for word in segment.words or ()] for segment in timed]


@cache
def warm_up() -> None:
    """Compile the time warping beside other work, once: it takes seconds, and the first buffer that
    is cut would wait for it.
    """
    threading.Thread(target=compile_warping, name="slimwhisper-words", daemon=True).start()


def _moved(word: Word, seconds: float) -> Word:
    start, end = (round(t + seconds, 2) for t in (word.start, word.end))
    return replace(word, start=start, end=end)
