"""A segment as the browser receives it."""

import json
from typing import Any

from slimwhisper.types import Segment


def segment_view(segment: Segment) -> list[Any]:
    """[start, end, text, words, speaker, flags]; times in seconds.

    words: the JSON text of a list of [start, end, word, probability], or None; as text, because
    Gradio copies what is nested item by item: seconds, for the words of three hours. speaker: None
    if not known. flags: names, of which the run's view has the reasons.
    """
    words = None
    if segment.words is not None:
        found = [[w.start, w.end, w.word, round(w.probability, 3)] for w in segment.words]
        words = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    text = segment.text.strip()
    return [segment.start, segment.end, text, words, segment.speaker, list(segment.flags)]
