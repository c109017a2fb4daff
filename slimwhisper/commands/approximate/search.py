"""How `calibrate` searches: a bisection of each ladder, then the smallest pair that passes."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cache of one part that may be used."""

    spec: str
    nbytes: int  # kept of a window


def last_passing(count: int, passes: Callable[[int], bool]) -> int:
    """The last of the rungs 0 .. count - 1 that passes, where those before it do as well; -1: none.

    At most ceil(log2(count + 1)) rungs are tried.
    """
    low, high = -1, count  # passes; does not
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low


def smallest_pair(
    cross: Sequence[Candidate],
    own: Sequence[Candidate],
    passes: Callable[[Candidate, Candidate], bool],
) -> tuple[Candidate, Candidate] | None:
    """The pair that keeps least and passes; None if none does. Pairs are tried by rising size.

    A pair that fails rules out nothing: each is one step of the search, and the next larger one of
    either part is the step back.
    """
    parts = [sorted(part, key=lambda c: (c.nbytes, c.spec)) for part in (cross, own)]
    if not all(parts):
        return None
    total = parts[0][0].nbytes + parts[1][0].nbytes
    waiting, seen = [(total, 0, 0)], {(0, 0)}
    while waiting:
        _, i, j = heapq.heappop(waiting)
        pair = parts[0][i], parts[1][j]
        if passes(*pair):
            return pair
        for step in ((i + 1, j), (i, j + 1)):
            if step[0] < len(parts[0]) and step[1] < len(parts[1]) and step not in seen:
                seen.add(step)
                total = parts[0][step[0]].nbytes + parts[1][step[1]].nbytes
                heapq.heappush(waiting, (total, *step))
    return None
