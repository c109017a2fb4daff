"""Which lines were heard, and in which pieces of audio they are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.forced_alignment.matching import HeardWord, Match, heard_words, match
from slimwhisper.forced_alignment.pieces import Piece, pieces_of
from slimwhisper.forced_alignment.script import words_of
from slimwhisper.types import Segment, Word
from tests.support.fuzz import examples

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


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    from whisper.tokenizer import get_tokenizer

    return get_tokenizer(multilingual=False)


def pieces(result: Match, tokenizer: object, seconds: float) -> list[Piece]:
    return list(pieces_of(result.placed, tokenizer, round(100 * seconds), 3000))  # type: ignore[arg-type]


def test_pieces_fit_and_have_all_words_once(tokenizer: object) -> None:
    rng = random.Random(2)
    text = " ".join(f"w{i}" for i in range(400))
    at, words = 0.0, []
    for word in text.split():
        at += rng.choice([0.0, 0.05, 0.3])
        words.append(HeardWord(word, f" {word}", at, at + 0.4))
        at += 0.4
    result = match(words_of([text]), words)
    parts = pieces(result, tokenizer, at + 0.01)
    assert [w.word.key for p in parts for w in p.words] == text.split()
    for part in parts:
        assert 0 < part.stop - part.start <= 3000
        assert part.start <= 100 * part.words[0].start <= 100 * part.words[-1].end <= part.stop
        assert len(part.words) == len(part.tokens)
    assert len(parts) < 3 * at / 30, "not many more than windows"


def test_a_piece_ends_before_strangers_and_long_pauses(tokenizer: object) -> None:
    result = found(f"{LINES[0]} well you know {LINES[1]} {LINES[2]}")
    parts = pieces(result, tokenizer, 8)
    assert [p.words[0].word.key for p in parts] == ["the", "jumps"]
    assert parts[0].stop <= 275 and parts[1].start >= 275, "their audio is shared by none"
    late = heard("and runs away", start=20.0)
    result = match(words_of(LINES), [*heard(" ".join(LINES[:2])), *late])
    assert len(pieces(result, tokenizer, 30)) == 2


def test_a_piece_ends_with_the_recording(tokenizer: object) -> None:
    result = match(words_of(LINES), heard(" ".join(LINES)))
    end = max(word.end for word in result.placed)
    assert pieces(result, tokenizer, end - 0.2)[-1].stop == round(100 * (end - 0.2))
