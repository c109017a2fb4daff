"""Formats segments and the outlines of waveforms for the browser."""

import base64
import json
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.types import Segment

COLUMNS = 1000


def segment_view(segment: Segment) -> list[Any]:
    """[start, end, text, words, speaker, flags]; times in seconds.

    words: the JSON text of a list of [start, end, word, probability], or None; as text, because
    Gradio copies nested values one by one, which takes seconds for the words of three hours.
    speaker: None if unknown. flags: names, whose reasons are in the run's view.
    """
    words = None
    if segment.words is not None:
        fields = [[w.start, w.end, w.word, round(w.probability, 3)] for w in segment.words]
        words = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    text = segment.text.strip()
    return [segment.start, segment.end, text, words, segment.speaker, list(segment.flags)]


def outline(samples: Samples, columns: int = COLUMNS) -> str:
    """The lowest and the highest sample in each of `columns` stretches of equal length.

    samples: float32 [n] in [-1, 1] at 16 kHz. Returns int8 [columns, 2] in base64: -127 to 127
    for -1 to 1. With fewer than `columns` samples, the stretches without any are 0.
    """
    extremes = np.zeros((columns, 2), np.float32)  # lowest (at most 0), highest (at least 0)
    edges = np.linspace(0, len(samples), columns + 1).round().astype(np.int64)
    for column, (start, stop) in enumerate(pairwise(edges.tolist())):
        if start < stop:
            piece: NDArray[np.float32] = samples.read(start, stop)
            extremes[column] = min(piece.min(), 0), max(piece.max(), 0)
    packed = (extremes * 127).round().clip(-127, 127).astype(np.int8)
    return base64.b64encode(packed.tobytes()).decode()
