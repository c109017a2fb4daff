"""Words, edits, the Pareto front and the searches: pure functions, against slow ones."""

import random
from functools import cache
from itertools import product

import pytest

from slimwhisper.commands.approximate.front import pareto_front
from slimwhisper.commands.approximate.search import Candidate, last_passing, smallest_pair
from slimwhisper.commands.approximate.words import edits, words_of


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


@pytest.mark.parametrize("count", range(10))
def test_bisection(count: int) -> None:
    for passing in range(count + 1):
        tried: list[int] = []

        def passes(i: int, tried: list[int] = tried, passing: int = passing) -> bool:
            tried.append(i)
            return i < passing

        assert last_passing(count, passes) == passing - 1
        assert len(tried) == len(set(tried)) <= count.bit_length()


def test_smallest_pair() -> None:
    """The smallest of all pairs that pass, whatever passes; none is tried twice, none that is
    larger than the answer.
    """
    rng = random.Random(3)
    for _ in range(200):
        parts = [
            [Candidate(f"{name}{i}", rng.randrange(1, 9)) for i in range(rng.randrange(1, 5))]
            for name in "ab"
        ]
        good = {pair for pair in product(*parts) if rng.random() < 0.3}
        tried = []

        def passes(one: Candidate, other: Candidate, good=good, tried=tried) -> bool:
            tried.append((one, other))
            return (one, other) in good

        def size(pair: tuple[Candidate, Candidate]) -> int:
            return pair[0].nbytes + pair[1].nbytes

        found = smallest_pair(*parts, passes)
        assert len(tried) == len(set(tried))
        if found is None:
            assert not good and len(tried) == len(parts[0]) * len(parts[1])
        else:
            assert found in good and size(found) == min(map(size, good))
            assert max(map(size, tried)) <= size(found)
    assert smallest_pair([], [Candidate("a", 1)], lambda one, other: True) is None
