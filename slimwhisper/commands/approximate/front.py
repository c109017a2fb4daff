"""The Pareto front: what nothing else beats in both of two costs."""

from collections.abc import Sequence


def pareto_front(costs: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats, by rising first cost.

    One beats another if it is no worse in both costs and better in one. Equal points are all kept.
    """
    front: list[int] = []
    best, first = float("inf"), float("nan")  # least second cost so far, and its point's first
    for i in sorted(range(len(costs)), key=costs.__getitem__):
        if costs[i][1] < best or costs[i] == (first, best):
            front.append(i)
            first, best = costs[i]
    return front
