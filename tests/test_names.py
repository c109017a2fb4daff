"""A name means one thing, and no file is too long to be read as a whole."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

# classes of it that we have as well
FASTER_WHISPER = {"Segment", "Tokenizer", "Word", "WhisperModel"}
RAY = {"Transcriber"}  # what each of its workers has
LINES = 500


@cache
def texts() -> dict[Path, str]:
    """Those of each file of the package."""
    folders = [ROOT / name for name in ("slimwhisper", "app", "kernels")]
    paths = [path for folder in folders for path in folder.rglob("*.py")]  # follows no links
    return {path: path.read_text(encoding="utf-8") for path in paths}


def test_class_names_are_unique() -> None:
    declared = re.compile(r"^ *class (\w+)[(:]", re.M)
    names = Counter(name for text in texts().values() for name in declared.findall(text))
    assert names["SlimWhisper"] == 1
    assert {name for name, count in names.items() if count > 1} == FASTER_WHISPER | RAY


def test_no_file_is_too_long() -> None:
    """What is read as a whole."""
    lengths = {path.name: len(text.splitlines()) for path, text in texts().items()}
    assert not {name: length for name, length in lengths.items() if length > LINES}
