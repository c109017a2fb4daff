"""The names, arguments and defaults are faster-whisper 1.2's: those in signatures.json, and the
package's where it is installed.
"""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from slimwhisper import faster_whisper

PINNED = json.loads(Path(__file__).with_name("signatures.json").read_text(encoding="utf-8"))


def signature(package: Any, path: str) -> str:
    """Of a function or a class in a package, without types."""
    value = package
    for part in path.split("."):
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    found = inspect.signature(value)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def test_arguments_and_defaults() -> None:
    assert {path: signature(faster_whisper, path) for path in PINNED} == PINNED


def test_they_are_the_packages() -> None:
    package = pytest.importorskip("faster_whisper", reason="needs faster-whisper")
    if not package.__version__.startswith("1.2."):
        pytest.skip(f"faster-whisper {package.__version__} is another one than 1.2")
    assert {path: signature(package, path) for path in PINNED} == PINNED
    assert set(package.__all__) <= set(faster_whisper.__all__)
