"""Which lines were heard, and in which pieces of audio they are."""

import random
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.engine.requests import Alignment
from slimwhisper.forced_alignment import borders
from slimwhisper.forced_alignment.matching import HeardWord, Match, heard_words, match
from slimwhisper.forced_alignment.pieces import Piece, pieces_of
from slimwhisper.forced_alignment.script import words_of
from slimwhisper.types import Segment, Word
from tests.support.fuzz import examples
from tests.support.scripted import tokenizer

LINES = ["the quick brown fox", "jumps over the lazy dog", "and runs away"]


def heard(text: str, start: float = 0.0, each: float = 0.5) -> list[HeardWord]:
    """Words of half a second, one after the other."""
    return [
        HeardWord(word, f" {word}", start + i * each, start + (i + 1) * each)
        for i, word in enumerate(text.split())
    ]


def found(text: str, lines: list[str] = LINES) -> Match:
    return match(words_of(lines), heard(text))


def placed_lines(result: Match) -> list[int]:
    return sorted({p.word.line for p in result.placed})


def test_words_heard_as_others_or_not_at_all_are_placed_between() -> None:
    result = found("the quack fox jumps over the lazy dog and away")
    assert placed_lines(result) == [0, 1, 2]
    times = {p.word.key: (p.start, p.end) for p in result.placed}
    assert times["quick"] == (0.5, 1.0) or times["brown"] == (0.5, 1.0)
    ends = [p.end for p in result.placed]
    assert ends == sorted(ends) and all(p.start <= p.end for p in result.placed)


def test_a_line_begins_where_it_goes_on() -> None:
    """Not with the same words of a sentence before it that is not in the script."""
    result = found(f"{LINES[0]} the dog slept the dog ran", [LINES[0], "the dog ran"])
    assert [span.text for span in result.unscripted(())] == ["the dog slept"]


def test_parts_of_a_word_are_heard_as_one() -> None:
    """As Whisper has them: "real", "-time"."""
    words = [Word(" A", 0, 1, 1), Word(" real", 1, 2, 1), Word("-time", 3, 4, 1)]
    segment = Segment(0, 0, 0, 4, " A real-time", [], 0, 0, 1, 0, words)
    assert list(heard_words([segment])) == [
        HeardWord("a", " A", 0, 1),
        HeardWord("realtime", " real-time", 1, 4),
    ]


KINDS = st.lists(st.sampled_from(("both", "both", "both", "missing", "extra")), max_size=40)


@examples(40)
@given(KINDS, st.integers(3, 9))
def test_edits_are_found(kinds: list[str], size: int) -> None:
    """Lines left out of the audio, and audio left out of the text, among distinct words."""
    texts = [" ".join(f"w{i}x{j}" for j in range(size)) for i in range(len(kinds))]
    rows = list(zip(kinds, texts, strict=True))
    lines = [text for kind, text in rows if kind != "extra"]
    missing = {lines.index(text) for kind, text in rows if kind == "missing"}
    result = found(" ".join(text for kind, text in rows if kind != "missing"), lines)
    assert result.certain == set(range(len(lines))) - missing
    doubtful = set(placed_lines(result)) - result.certain  # missing lines beside other audio
    strange = sum(len(s.text.split()) for s in result.unscripted(doubtful))
    assert strange == size * kinds.count("extra")


# -- pieces ------------------------------------------------------------------------------------


def pieces(result: Match, seconds: float) -> list[Piece]:
    return list(pieces_of(result.placed, tokenizer(), round(100 * seconds), 3000))  # type: ignore[arg-type]


def test_pieces_fit_and_have_all_words_once() -> None:
    rng = random.Random(2)
    text = " ".join(f"w{i}" for i in range(400))
    at, words = 0.0, []
    for word in text.split():
        at += rng.choice([0.0, 0.05, 0.3])
        words.append(HeardWord(word, f" {word}", at, at + 0.4))
        at += 0.4
    result = match(words_of([text]), words)
    parts = pieces(result, at + 0.01)
    assert [w.word.key for p in parts for w in p.words] == text.split()
    for part in parts:
        assert 0 < part.stop - part.start <= 3000
        assert part.start <= 100 * part.words[0].start <= 100 * part.words[-1].end <= part.stop
        assert len(part.words) == len(part.tokens)
    assert len(parts) < 3 * at / 30, "not many more than windows"


def test_a_piece_ends_before_strangers_and_long_pauses() -> None:
    result = found(f"{LINES[0]} well you know {LINES[1]} {LINES[2]}")
    parts = pieces(result, 8)
    assert [p.words[0].word.key for p in parts] == ["the", "jumps"]
    assert parts[0].stop <= 275 and parts[1].start >= 275, "their audio is shared by none"
    late = heard("and runs away", start=20.0)
    result = match(words_of(LINES), [*heard(" ".join(LINES[:2])), *late])
    assert len(pieces(result, 30)) == 2


def test_a_piece_ends_with_the_recording() -> None:
    result = match(words_of(LINES), heard(" ".join(LINES)))
    end = max(word.end for word in result.placed)
    assert pieces(result, end - 0.2)[-1].stop == round(100 * (end - 0.2))


# Words' borders from attention and sound


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
