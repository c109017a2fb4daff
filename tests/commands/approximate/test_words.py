"""Words, edits and the Pareto front: pure functions, against slow ones."""

import random
from functools import cache

import pytest

from slimwhisper.commands.approximate.plot import pareto_front
from slimwhisper.commands.approximate.recordings import edits, words_of


def slow_edits(truth: str, found: str) -> int:
    """Levenshtein's recursion."""

    @cache
    def best(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        same = truth[i - 1] == found[j - 1]
        return min(best(i - 1, j) + 1, best(i, j - 1) + 1, best(i - 1, j - 1) + (not same))

    return best(len(truth), len(found))


def test_edits() -> None:
    assert edits("kitten", "sitting") == 3
    assert edits([], [1, 2]) == 2 and edits([1, 2], []) == 2 and edits([], []) == 0
    rng = random.Random(0)
    for _ in range(300):
        one, other = ("".join(rng.choices("abc", k=rng.randrange(9))) for _ in range(2))
        assert edits(one, other) == slow_edits(one, other) == edits(other, one), (one, other)


def test_edits_as_jiwer_counts_them() -> None:
    jiwer = pytest.importorskip("jiwer")
    rng = random.Random(1)
    for _ in range(50):
        one, other = (rng.choices("one two three four".split(), k=12) for _ in range(2))
        out = jiwer.process_words(" ".join(one), " ".join(other))
        assert edits(one, other) == out.insertions + out.deletions + out.substitutions


def test_words() -> None:
    assert words_of(" Five, FIVE (cough) one-oh!", "en") == ["five", "five", "one", "oh"]
    assert words_of("Straße [noise] für", "de") == ["straße", "für"]
    assert words_of("今日は。", "ja") == ["今", "日", "は"]
    assert words_of(" ... ", "en") == []


def test_front() -> None:
    """Against its definition, on a grid with many ties."""
    rng = random.Random(2)
    assert pareto_front([]) == []
    for _ in range(300):
        points = [(rng.randrange(5), rng.randrange(5)) for _ in range(rng.randrange(1, 9))]
        expected = {
            i
            for i, (x, y) in enumerate(points)
            if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
        }
        found = pareto_front(points)
        assert set(found) == expected and len(found) == len(expected)
        assert [points[i][0] for i in found] == sorted(points[i][0] for i in found)
