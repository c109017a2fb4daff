"""Words' times closer to the sound than whisper's: `--word_times fine`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slimwhisper.forced_alignment.borders import POSITION, word_attention, word_borders
from slimwhisper.forced_alignment.script import word_key
from slimwhisper.longform.passes import DecodedWindow
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Word


def with_fine_times(segments: Sequence[Segment], window: DecodedWindow) -> list[Segment]:
    """A window's segments; their words begin and end where the sound does.

    The words are those of `words.time_segments`: the first of the alignment's text, in order. What
    is said after `window.stop` is the next window's.
    """
    alignment, tokenizer, span = window.alignment, window.tokenizer, window.span
    if alignment is None:
        return list(segments)
    mel, stop = window.mel(), window.stop
    before = window.before[-1].end if window.before else 0.0  # where the words before it end
    texts, tokens = tokenizer.split_to_word_tokens(list(alignment.text))
    names, counts = list[str](), list[int]()  # of words; punctuation belongs to its neighbour
    for text, piece in zip(texts, tokens, strict=True):
        if names and not (word_key(text) and word_key(names[-1])):
            names[-1] += text
            counts[-1] += len(piece)
        else:
            names.append(text)
            counts.append(len(piece))
    if not names:
        return list(segments)
    positions = round((before - span.offset) / POSITION), (stop - span.start) // 2
    attention = word_attention(alignment, counts, tokenizer, span.frames)
    found = word_borders(attention, mel, max(positions[0], 0), positions[1])
    borders = (np.minimum(found, span.frames / FRAMES_PER_SECOND) + span.offset).round(2).tolist()
    stops = np.cumsum([len(name) for name in names])  # in the text
    begin, result = 0, list[Segment]()
    for segment in segments:
        words = list[Word]()
        for word in segment.words or ():
            end = begin + len(word.word)
            begin += next((i for i, c in enumerate(word.word) if word_key(c)), 0)  # to its letters
            first = min(int(np.searchsorted(stops, begin, side="right")), len(names) - 1)
            last = min(int(np.searchsorted(stops, end)), len(names) - 1)
            # a dash stands behind its neighbour; a segment of dashes alone keeps a length
            side = int(not word_key(word.word) and word_key(segment.text) != "")
            words.append(replace(word, start=borders[first][side], end=borders[last][1]))
            begin = end
        kept = segment
        if words and segment.start < segment.end:  # else its text will go, as in whisper
            spoken = next((i for i, word in enumerate(words) if word_key(word.word)), 0)
            start = words[spoken].start  # dashes before the segment's first word stand there, too
            words[:spoken] = [replace(dash, start=start, end=start) for dash in words[:spoken]]
            kept = replace(segment, start=start, end=words[-1].end, words=words)
        result.append(kept)
    return result
