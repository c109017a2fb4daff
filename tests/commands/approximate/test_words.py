"""Words, and how many of them two texts differ in."""

import random

import pytest

from slimwhisper.commands.approximate.recordings import edits, words_of


def test_edits_as_jiwer_counts_them() -> None:
    jiwer = pytest.importorskip("jiwer")
    assert edits("kitten", "sitting") == 3
    assert edits([], [1, 2]) == 2 and edits([1, 2], []) == 2 and edits([], []) == 0
    rng = random.Random(1)
    for length in range(1, 60):
        one = rng.choices("one two three four".split(), k=length)
        other = rng.choices("one two three four".split(), k=rng.randrange(1, 12))
        out = jiwer.process_words(" ".join(one), " ".join(other))
        assert edits(one, other) == out.insertions + out.deletions + out.substitutions


def test_words() -> None:
    assert words_of(" Five, FIVE (cough) one-oh!", "en") == ["five", "five", "one", "oh"]
    assert words_of("Straße [noise] für", "de") == ["straße", "für"]
    assert words_of("今日は。", "ja") == ["今", "日", "は"]
    assert words_of(" ... ", "en") == []
