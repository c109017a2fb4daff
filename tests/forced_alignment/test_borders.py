"""Words' borders from attention and sound."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from slimwhisper.engine.requests import Alignment
from slimwhisper.forced_alignment import borders
from tests.support.scripted import tokenizer

N_MELS = 8


def scene(words: list[tuple[int, int]], positions: int, noise: float = 0.0) -> torch.Tensor:
    """[n_mels, 2 p]: words, as positions, over a quiet floor."""
    rng = np.random.default_rng(0)
    mel = np.full((N_MELS, 2 * positions), -1.0) + noise * rng.random((N_MELS, 2 * positions))
    for start, stop in words:
        mel[:, 2 * start : 2 * stop] = 1.0
    return torch.from_numpy(mel).float()


def attention_to(words: list[tuple[int, int]], positions: int) -> np.ndarray:
    """[N, p]: each word attends to its middle, as tokens do."""
    at = np.arange(positions)
    rows = [np.exp(-0.5 * ((at - (a + b) / 2) / 3) ** 2) for a, b in words]
    return np.stack([row / row.sum() for row in rows])


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_borders_are_where_the_sound_is(noise: float) -> None:
    """All words attend a little to the silence before them, too."""
    words = [(120, 135), (145, 157), (175, 205)]
    found = borders.word_borders(attention_to(words, 225) + 0.01, scene(words, 225, noise))
    np.testing.assert_allclose(found, np.array(words) * borders.POSITION)


@pytest.mark.parametrize("count", [64, 100, 300])
def test_as_many_words_as_a_window_of_speech_has(count: int) -> None:
    words = [(5 * i + 2, 5 * i + 5) for i in range(count)]
    found = borders.word_borders(attention_to(words, 5 * count), scene(words, 5 * count))
    np.testing.assert_allclose(found, np.array(words) * borders.POSITION)


def test_words_without_a_pause_are_parted_by_attention() -> None:
    words = [(10, 30), (30, 44), (44, 70)]
    found = borders.word_borders(attention_to(words, 90), scene([(10, 70)], 90))
    assert found[0, 0] == 10 * borders.POSITION and found[-1, 1] == 70 * borders.POSITION
    assert (found[1:, 0] == found[:-1, 1]).all(), "no pause between them"
    assert (np.abs(found - np.array(words) * borders.POSITION) <= 5 * borders.POSITION).all()


def test_words_share_what_is_too_short_for_them() -> None:
    found = borders.word_borders(np.full((5, 3), 1 / 3), scene([], 3))
    np.testing.assert_allclose(found[:, 1] - found[:, 0], 3 * borders.POSITION / 5)
    assert (found[1:, 0] == found[:-1, 1]).all()
    assert borders.word_borders(np.ones((1, 1)), scene([], 1)).tolist() == [[0, borders.POSITION]]


def test_words_stay_where_the_text_is() -> None:
    """What sounds before and after it is the text of other windows."""
    words = [(30, 42), (60, 90)]
    mel = scene([(5, 20), *words, (95, 110)], 110)
    found = borders.word_borders(attention_to(words, 110), mel, 25, 93)
    np.testing.assert_allclose(found, np.array(words) * borders.POSITION)
    found = borders.word_borders(attention_to(words, 110), mel, 35, 36)
    np.testing.assert_allclose(found, np.array([(35, 35.5), (35.5, 36)]) * borders.POSITION)


def test_the_path_is_the_best_of_all() -> None:
    """Against every path, one by one."""
    rng = np.random.default_rng(3)
    for words, positions in ((1, 4), (2, 5), (3, 6)):
        for _ in range(20):
            scores = rng.normal(size=(2 * words + 1, positions))
            states = range(2 * words + 1)
            paths = [
                path
                for path in combinations_with_replacement(states, positions)
                if set(range(1, 2 * words, 2)) <= set(path)
            ]
            best = max(paths, key=lambda path: sum(scores[s, i] for i, s in enumerate(path)))
            assert tuple(borders._likeliest(scores)) == best


def test_a_pause_is_near_the_floor_or_much_fainter_than_speech() -> None:
    mel = scene([(0, 20)], 400)
    mel[0] = 1.0  # a hum
    assert borders.speech_odds(mel, 400)[10:40] == pytest.approx([7.4] * 10 + [-3.0] * 20)
    mel = scene([(0, 20)], 400)
    mel[:, 50:80] = mel[:, 700:720] = -0.25  # 50 dB fainter, near what is loud and far from it
    assert borders.speech_odds(mel, 400)[25:40] == pytest.approx([-2.6] * 15)
    assert (borders.speech_odds(mel, 400)[350:360] > 5).all()


def test_a_words_attention_is_its_tokens() -> None:
    """By the rows before them, over all heads, to the positions with audio; not by punctuation,
    but where a word has nothing else.
    """
    scores = torch.randn(3, 2 + 4 + 1, 10, generator=torch.Generator().manual_seed(1))
    text = tuple(tokenizer().encode("- Fairbank."))
    alignment = Alignment(text, 2, scores, (0.5,) * 4)
    found = borders.word_attention(alignment, [1, 3], tokenizer(), 2 * 6)  # type: ignore[arg-type]
    weights = scores[:, :, :6].softmax(dim=-1).mean(dim=0).numpy()
    np.testing.assert_allclose(found[0], weights[1], rtol=1e-6)
    np.testing.assert_allclose(found[1], weights[2:4].mean(axis=0), rtol=1e-6)
