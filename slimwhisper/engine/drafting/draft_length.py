"""Chooses how many tokens to draft: as many as give the most tokens a second, by measured times."""

from collections.abc import Sequence
from statistics import linear_regression

import numpy as np
from numpy.typing import NDArray

LENGTHS = (0, 1, 2, 3, 5, 7)  # of drafts on a CPU
MAX_DRAFT = max(LENGTHS)
GPU_LENGTHS = (0, 2, 4, 7)  # each has graphs of its own
TIMED_FIRST = (1, 3, 0)  # are timed once each, in this order
TIME_GROWTH = 1.02  # factor, after each step, of the best time of a length that was used
TIME_DECAY = 0.998  # and of one that was not used, so that it is tried again


class DraftLengthController:
    """Times steps by their number of texts and draft length, and chooses the next length.

    This changes only how many tokens are verified in a step, never a text.
    """

    def __init__(self, cost: float, timed: bool) -> None:
        """cost: of one drafted token, relative to a step without drafts, until times are known.
        timed: whether `record` will be called, as on a CPU.
        """
        self.cost, self.timed, self.lengths = cost, timed, LENGTHS if timed else GPU_LENGTHS
        self._seconds: dict[tuple[int, int], float] = {}

    def choose(self, rates: NDArray[np.float64], most: int) -> int:
        """The length of the next draft, at most `most`; rates [R]: each text's acceptance rate."""
        texts = _bucket(len(rates))
        possible = [k for k in self.lengths if k <= most]
        for k in TIMED_FIRST if self.timed else ():
            if k in possible and (texts, k) not in self._seconds:
                return k
        expected = self._expected(texts)
        return max(possible, key=lambda k: expected_tokens(rates, k) / expected[k], default=0)

    def record(self, texts: int, length: int, seconds: float) -> None:
        """Record the duration of a step."""
        key = _bucket(texts), length
        previous = self._seconds.get(key)
        for other in self._seconds:
            if other[0] == key[0]:
                self._seconds[other] *= TIME_DECAY
        self._seconds[key] = seconds if previous is None else min(previous * TIME_GROWTH, seconds)

    def _expected(self, texts: int) -> dict[int, float]:
        """Seconds of a step by the length of its draft, or relative to one without."""
        times = {k: s for (n, k), s in self._seconds.items() if n == texts}
        if len(times) > 1:  # on the line through the known times
            slope, start = linear_regression(list(times), list(times.values()))
            least = min(times.values())
            line = {k: max(start + slope * k, least) for k in self.lengths}
        else:
            line = {k: (1 + self.cost * k) * times.get(0, 1.0) for k in self.lengths}
        return line | times


def expected_tokens(rates: NDArray[np.float64], length: int) -> float:
    """Tokens that a step gains over all texts: 1 + a + a^2 + ... each (Leviathan et al., eq. 1)."""

    powers: Sequence[float] = [float((rates**i).sum()) for i in range(length + 1)]
    return sum(powers)


def _bucket(texts: int) -> int:
    return (texts - 1).bit_length()
