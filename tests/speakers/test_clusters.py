"""Voices told apart, on embeddings made for it."""

import itertools

import numpy as np
import pytest

from slimwhisper.speakers import clusters
from slimwhisper.speakers.clusters import (
    are_two,
    count_speakers,
    group,
    refine,
    unit,
    viterbi_path,
)

pytest.importorskip("sklearn", reason="the extra `diarize`, or `dev`, has scikit-learn")


def voices(sizes: list[int], spread: float = 0.35, seed: int = 0) -> np.ndarray:
    """Unit vectors [sum, 64] around orthogonal voices, one voice after the other."""
    rng = np.random.default_rng(seed)
    middles = np.eye(64)[np.repeat(np.arange(len(sizes)), sizes)]
    return unit(middles + spread / 8 * rng.standard_normal(middles.shape))


@pytest.mark.parametrize("sizes", [[40], [30, 30], [80, 9], [20, 25, 30], [12] * 8])
def test_the_number_and_the_voices_are_found(sizes: list[int]) -> None:
    vectors = voices(sizes)
    assert count_speakers(vectors) == len(sizes)
    labels = group(vectors, None)
    pairs = set(zip(labels.tolist(), np.repeat(np.arange(len(sizes)), sizes).tolist(), strict=True))
    assert len(pairs) == len(sizes)


def test_stray_many_and_few_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_speakers(voices([60, 60, 1])) == 2, "a stray one is no speaker"
    assert set(group(voices([30, 30]), 3).tolist()) == {0, 1, 2}, "the number given is kept"
    assert set(group(voices([30, 30]), 1).tolist()) == {0}
    same = np.repeat(voices([1]), 5, axis=0)
    assert set(group(same, 3).tolist()) == {0}, "one voice cannot be three"
    assert group(np.zeros((0, 64), np.float32), None).tolist() == []
    assert group(voices([1]), 4).tolist() == [0]
    monkeypatch.setattr(clusters, "MAX_LINKED", 50)
    assert count_speakers(voices([300, 200, 100])) == 3, "many are counted by a part"


def test_one_voice_or_two() -> None:
    assert are_two(voices([15, 15], spread=0.6)) and are_two(voices([20, 12], spread=0.6))
    assert not are_two(voices([30], spread=0.6)) and not are_two(voices([300], spread=0.6))
    assert not are_two(voices([5, 5])), "too few to say"
    assert not are_two(np.repeat(voices([1]), 20, axis=0))


def test_labels_are_refined_over_time() -> None:
    """What all have in common counts for nothing, and a few wrong labels are mended."""
    truth = np.repeat([0, 1, 0, 1], [6, 5, 4, 9])
    vectors = unit(voices([1, 1], spread=0)[truth] + 3 * np.eye(64)[40])
    wrong = truth.copy()
    wrong[[2, 7, 12, 20]] ^= 1
    assert refine(vectors, np.ones(24, np.float32), wrong, 0.1).tolist() == truth.tolist()
    alone = np.zeros(24, np.int64)
    assert refine(vectors, np.ones(24, np.float32), alone, 0.1).tolist() == alone.tolist()


def test_the_path_is_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    for switch in (0.0, 0.1, 0.5):
        scores = rng.uniform(0, 1, (6, 3)).astype(np.float32)

        def value(path: tuple[int, ...], s: np.ndarray = scores, w: float = switch) -> float:
            changes = sum(a != b for a, b in itertools.pairwise(path))
            return float(sum(s[i, k] for i, k in enumerate(path)) - w * changes)

        best = max(itertools.product(range(3), repeat=6), key=value)
        assert value(tuple(viterbi_path(scores, switch))) == pytest.approx(value(best))
