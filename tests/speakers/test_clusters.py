"""Voices told apart, on embeddings made for it."""

import numpy as np
import pytest

from slimwhisper.speakers import embedding
from slimwhisper.speakers.embedding import find_centres, unit

pytest.importorskip("scipy", reason="the extra `diarize`, or `dev`, has scipy")


def voices(sizes: list[int]) -> np.ndarray:
    """Unit vectors [sum, 64] around orthogonal voices, one voice after the other."""
    middles = np.eye(64)[np.repeat(np.arange(len(sizes)), sizes)]
    return unit(middles + 0.05 * np.random.default_rng(0).standard_normal(middles.shape))


def centres(sizes: list[int], between: tuple[int, int] = (1, 20)) -> np.ndarray:
    vectors = voices(sizes)
    return find_centres(vectors, np.ones(len(vectors), np.float32), between)


@pytest.mark.parametrize("sizes", [[1], [40], [30, 30], [80, 9], [20, 25, 30], [12] * 8])
def test_the_number_and_the_voices_are_found(sizes: list[int]) -> None:
    found = centres(sizes)
    assert found.shape == (len(sizes), 64)
    nearest = (voices(sizes) @ found.T).argmax(axis=1)
    pairs = zip(nearest.tolist(), np.repeat(range(len(sizes)), sizes), strict=True)
    assert len(set(pairs)) == len(sizes)


def test_stray_many_and_few_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(centres([60, 60, 1])) == 2, "a stray one is no speaker"
    assert len(centres([60, 60, 1], (3, 3))) == 3, "but where three are known"
    assert [len(centres(*c)) for c in (([30, 30], (3, 3)), ([30, 30], (1, 1)), ([1], (4, 4)))] == [
        3,
        1,
        1,
    ]
    assert [len(centres([30, 30, 30], b)) for b in ((1, 2), (4, 9), (2, 4))] == [2, 4, 3]
    assert len(centres([3] * 30)) <= embedding.MOST_SPEAKERS
    monkeypatch.setattr(embedding, "MAX_LINKED", 50)
    assert len(centres([300, 200, 100])) == 3, "many are counted by a part"


def test_weights() -> None:
    """A heavy embedding counts for more, in the centre and in whether a voice is counted."""
    assert len(find_centres(voices([1, 60, 60]), np.array([20] + 120 * [1], "f4"), (1, 20))) == 3


def test_a_voice_has_one_centre_though_some_are_far_apart() -> None:
    angles = np.radians([0, 40, 78])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert len(find_centres(vectors, np.array([3, 94, 3], "f4"), (1, 20))) == 1
