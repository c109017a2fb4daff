"""A name means one thing: no two of our classes have the same."""

import ast
from collections import Counter

from tests.support.paths import ROOT

FASTER_WHISPER = {"Segment", "Word", "WhisperModel"}  # classes of it that we have as well


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for package in ("slimwhisper", "app", "kernels")
        for path in (ROOT / package).rglob("*.py")  # follows no links
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert names["SlimWhisper"] == 1
    assert {name for name, count in names.items() if count > 1} == FASTER_WHISPER
