"""A name means one thing, and no file is too long to be read as a whole."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

# classes of it that we have as well
FASTER_WHISPER = {"Segment", "Tokenizer", "Word", "WhisperModel"}
RAY = {"Transcriber"}  # what each of its workers has
LINES = 500


@cache
def classes() -> dict[Path, list[ast.ClassDef]]:
    """Those of each file of the package."""
    folders = [ROOT / name for name in ("slimwhisper", "app", "kernels")]
    paths = [path for folder in folders for path in folder.rglob("*.py")]  # follows no links
    trees = {path: ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in paths}
    return {p: [n for n in tree if isinstance(n, ast.ClassDef)] for p, tree in trees.items()}


def test_class_names_are_unique() -> None:
    names = Counter(node.name for found in classes().values() for node in found)
    assert names["SlimWhisper"] == 1
    assert {name for name, count in names.items() if count > 1} == FASTER_WHISPER | RAY


def test_no_file_is_too_long() -> None:
    """What is read as a whole."""
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in classes()}
    assert not {path.name: length for path, length in lengths.items() if length > LINES}
