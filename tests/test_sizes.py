"""What is read as a whole stays small: folders, files, classes."""

import ast
from collections import Counter

from tests.support.paths import ROOT

PACKAGES = ("slimwhisper", "app", "kernels")
LINES, CLASS_LINES, ATTRIBUTES, MODULES = 300, 250, 12, 14
LARGER = {"slimwhisper"}  # a third of its modules are names that scripts for whisper import


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class's methods set on self."""
    return {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if isinstance(child.value, ast.Name) and child.value.id == "self"
    }


def test_nothing_is_too_large() -> None:
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]  # follows no links
    folders = Counter(path.parent for path in paths if path.name != "__init__.py")
    found = {str(f.relative_to(ROOT)) for f, count in folders.items() if count > MODULES}
    for path in paths:
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        if len(text.splitlines()) > LINES:
            found.add(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > CLASS_LINES or len(attributes(node)) > ATTRIBUTES:
                    found.add(f"{name}: {node.name}")
    assert found == LARGER
