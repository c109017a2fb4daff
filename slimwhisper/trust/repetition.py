"""Where a text repeats itself: stretches of the same words over and over."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from slimwhisper.trust.tokens import tokens_of, weight

MAX_PERIOD = 40  # tokens; longer loops show in the compression ratio
# "no, no, no" and a chorus are no loops: this often, and this many words in all or in each turn
OFTEN, WORDS = 4, 8
THRICE, LONG_TURN = 3, 6


def loops(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """The stretches [start, stop) of tokens that repeat the same turn: four times and eight words
    at least, or three times a turn of six words. They may overlap.
    """
    if len(tokens) < WORDS:
        return []
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(token, len(numbers)) for token in tokens])
    weights = list(accumulate(map(weight, tokens), initial=0.0))
    found = []
    for period in range(1, min(MAX_PERIOD, len(tokens) // THRICE) + 1):
        same = ids[period:] == ids[:-period]
        if np.count_nonzero(same) < max((THRICE - 1) * period, WORDS - period):
            continue
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2).tolist():
            times = (stop - start) / period + 1
            turn = weights[start + period] - weights[start]
            total = weights[stop + period] - weights[start]
            if (times >= OFTEN and total >= WORDS) or (times >= THRICE and turn >= LONG_TURN):
                found.append((start, stop + period))
    return found


def looping(texts: Sequence[str]) -> list[bool]:
    """Of each of these texts, which follow one another, whether at least half of it is in a loop,
    of its own or with its neighbours.
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
