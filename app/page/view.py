"""A segment as the browser receives it."""

from typing import Any

from slimwhisper.types import Segment


def segment_view(segment: Segment) -> list[Any]:
    """[start, end, text, words, speaker, flags]; times in seconds.

    words: [start, end, word, probability] each, or None. speaker: None if not known. flags: names,
    of which the run's view has the reasons.
    """
    words: list[list[Any]] | None = None
    if segment.words is not None:
        words = [[w.start, w.end, w.word, round(w.probability, 3)] for w in segment.words]
    text = segment.text.strip()
    return [segment.start, segment.end, text, words, segment.speaker, list(segment.flags)]
