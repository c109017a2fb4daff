"""Loops: stretches of text that repeat the same words."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from slimwhisper.trust.tokens import tokens_of, weight

MAX_PERIOD = 40  # tokens; longer loops show in the compression ratio
# "no, no, no" and a chorus are not loops
MIN_REPEATS, MIN_WORDS = 4, 8  # words in all
MIN_LONG_REPEATS, MIN_LONG_WORDS = 3, 6  # words of each repeat


def loops(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """The stretches [start, stop) of tokens that repeat the same words: at least four times, with
    eight words in all, or at least three times, with six words each. They may overlap.
    """
    if len(tokens) < MIN_WORDS:
        return []
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(token, len(numbers)) for token in tokens])
    weights = list(accumulate(map(weight, tokens), initial=0.0))
    stretches = []
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
                stretches.append((start, stop + period))
    return stretches


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
    return [
        bool(part) and 2 * int(counts[i + 1] - counts[i]) >= len(part)
        for i, part in enumerate(parts)
    ]
