"""Words of a text."""

from slimwhisper.commands.approximate.recordings import words_of


def test_words() -> None:
    assert words_of(" Five, FIVE (cough) one-oh!", "en") == ["five", "five", "one", "oh"]
    assert words_of("Straße [noise] für", "de") == ["straße", "für"]
    assert words_of("今日は。", "ja") == ["今", "日", "は"]
    assert words_of(" ... ", "en") == []
