"""Words' times closer to the sound than whisper's: `--word_times fine`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from slimwhisper.engine.requests import Alignment
from slimwhisper.forced_alignment.borders import word_attention, word_borders
from slimwhisper.longform.hallucination import WindowSpan
from slimwhisper.types import Segment, Word

if TYPE_CHECKING:  # it imports numba, which is slow to start
    from whisper.tokenizer import Tokenizer


def with_fine_times(
    segments: Sequence[Segment],
    alignment: Alignment,
    tokenizer: "Tokenizer",
    mel: Tensor,
    span: WindowSpan,
) -> list[Segment]:
    """A window's segments; their words begin and end where the sound does.

    The words are those of `words.time_segments`: the first of the alignment's text, in order. mel
    [n_mels, 3000]: the window's.
    """
    texts, tokens = tokenizer.split_to_word_tokens(list(alignment.text))
    names, counts = list[str](), list[int]()  # of words; punctuation belongs to its neighbour
    for text, piece in zip(texts, tokens, strict=True):
        if names and not (_is_word(text) and _is_word(names[-1])):
            names[-1] += text
            counts[-1] += len(piece)
        else:
            names.append(text)
            counts.append(len(piece))
    if not names:
        return list(segments)
    borders = word_borders(word_attention(alignment, counts, span.frames), mel) + span.offset
    ends = [len("".join(names[: i + 1])) for i in range(len(names))]  # in the text
    at = first = 0
    result = []
    for segment in segments:
        words = list[Word]()
        for word in segment.words or ():
            at += len(word.word)
            last = first
            while last + 1 < len(ends) and ends[last] < at:
                last += 1
            start, end = float(borders[first, 0]), float(borders[last, 1])
            words.append(replace(word, start=round(start, 2), end=round(end, 2)))
            first = last + (ends[last] <= at and last + 1 < len(ends))
        if words:
            segment = replace(segment, start=words[0].start, end=words[-1].end, words=words)
        result.append(segment)
    return result


def _is_word(text: str) -> bool:
    return any(c.isalnum() for c in text)
