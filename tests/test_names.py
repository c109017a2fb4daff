"""A name means one thing, and what is read as a whole is small: classes, files, folders."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

FASTER_WHISPER = {"Segment", "Word", "WhisperModel"}  # classes of it that we have as well
LINES, CLASS_LINES, ATTRIBUTES, MODULES = 300, 250, 12, 14
LARGER = {"slimwhisper"}  # a third of its modules are names that scripts for whisper import


@cache
def classes() -> dict[Path, list[ast.ClassDef]]:
    """Those of each file of the package."""
    folders = [ROOT / name for name in ("slimwhisper", "app", "kernels")]
    paths = [path for folder in folders for path in folder.rglob("*.py")]  # follows no links
    trees = {path: ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in paths}
    return {p: [n for n in tree if isinstance(n, ast.ClassDef)] for p, tree in trees.items()}


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class's methods set on self."""
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    stored = [n for n in stored if isinstance(n.ctx, ast.Store)]
    return {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}


def test_class_names_are_unique() -> None:
    names = Counter(node.name for found in classes().values() for node in found)
    assert names["SlimWhisper"] == 1
    assert {name for name, count in names.items() if count > 1} == FASTER_WHISPER


def test_nothing_is_too_large() -> None:
    modules = Counter(path.parent for path in classes() if path.name != "__init__.py")
    large = {str(f.relative_to(ROOT)) for f, count in modules.items() if count > MODULES}
    for path, found in classes().items():
        if len(path.read_text(encoding="utf-8").splitlines()) > LINES:
            large.add(str(path.relative_to(ROOT)))
        for node in found:
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > CLASS_LINES or len(attributes(node)) > ATTRIBUTES:
                large.add(node.name)
    assert large == LARGER
