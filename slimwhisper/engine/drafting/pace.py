"""How many tokens to draft: as many as bring the most text a second, by what steps have taken."""

from collections.abc import Sequence
from statistics import linear_regression

import numpy as np
from numpy.typing import NDArray

LENGTHS = (0, 1, 2, 3, 5, 7)  # of drafts; few, as each is a graph of its own on a GPU
TRIED = (1, 3, 0)  # that are timed once, whatever is expected of them
FORGET = 1.02  # a time that was not reached again counts for so much more after each step
RETRY = 0.998  # and one that was not tried for so much less, until it is tried


class Pace:
    """Times of steps, by their number of texts and the length of the draft.

    They decide only how much is checked together, never what a text says.
    """

    def __init__(self, cost: float, timed: bool) -> None:
        """cost: of one drafted token, relative to a step without drafts, where no time is known.
        timed: whether `note` will be called.
        """
        self.cost, self.timed = cost, timed
        self._seconds: dict[tuple[int, int], float] = {}

    def choose(self, hopes: NDArray[np.float64], most: int) -> int:
        """The length of the next draft, at most `most`; hopes [R]: how likely each text's next
        guess is right.
        """
        texts = _bucket(len(hopes))
        possible = [k for k in LENGTHS if k <= most]
        for k in TRIED if self.timed else ():
            if k in possible and (texts, k) not in self._seconds:
                return k
        expected = self._expected(texts)
        return max(possible, key=lambda k: gain(hopes, k) / expected[k], default=0)

    def note(self, texts: int, length: int, seconds: float) -> None:
        """A step took so long."""
        key = _bucket(texts), length
        known = self._seconds.get(key)
        for other in self._seconds:
            if other[0] == key[0]:
                self._seconds[other] *= RETRY
        self._seconds[key] = seconds if known is None else min(known * FORGET, seconds)

    def _expected(self, texts: int) -> dict[int, float]:
        """Seconds of a step by the length of its draft, or numbers in proportion to them."""
        times = {k: s for (n, k), s in self._seconds.items() if n == texts}
        if len(times) > 1:  # on the line through those that are known
            slope, start = linear_regression(list(times), list(times.values()))
            least = min(times.values())
            line = {k: max(start + slope * k, least) for k in LENGTHS}
        else:
            line = {k: (1 + self.cost * k) * times.get(0, 1.0) for k in LENGTHS}
        return line | times


def gain(hopes: NDArray[np.float64], length: int) -> float:
    """Tokens that all texts gain by a step: 1 + a + a^2 + ... of each (Leviathan et al., eq. 1)."""
    powers: Sequence[float] = [float((hopes**i).sum()) for i in range(length + 1)]
    return sum(powers)


def _bucket(texts: int) -> int:
    return (texts - 1).bit_length()
