"""A name means one thing, and no file is too long to be read as a whole."""

import re
from collections import Counter

from tests.support.paths import modules

# classes of it that we have as well
FASTER_WHISPER = {"Segment", "Tokenizer", "Word", "WhisperModel"}
RAY = {"Transcriber"}  # what each of its workers has
LINES = 500
TEXTS = {path: path.read_text(encoding="utf-8") for path in modules()}


def test_class_names_are_unique() -> None:
    declared = re.compile(r"^ *class (\w+)[(:]", re.M)
    names = Counter(name for text in TEXTS.values() for name in declared.findall(text))
    assert names["SlimWhisper"] == 1
    assert {name for name, count in names.items() if count > 1} == FASTER_WHISPER | RAY


def test_no_file_is_too_long() -> None:
    """What is read as a whole."""
    lengths = {path.name: len(text.splitlines()) for path, text in TEXTS.items()}
    assert not {name: length for name, length in lengths.items() if length > LINES}
