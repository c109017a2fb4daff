"""openai-whisper's tables, tokenizer, writers and mel filters, without `import whisper`.

That package imports all of its modules, and with its alignment numba, before any of them can be
used. This module finds the same files: `whisper_package.tokenizer` is its tokenizer.py.
Take `audio`, `tokenizer` and `utils` from here; the others need the whole package.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from slimwhisper._lazy import find_openai_whisper

__path__ = list(find_openai_whisper().submodule_search_locations or ())


@cache
def _table(name: str) -> Mapping[str, str | bytes]:
    """A dictionary of literals in the package's `__init__`, read as text."""
    for node in ast.parse(Path(__path__[0], "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            table: dict[str, str | bytes] = ast.literal_eval(node.value)
            return table
    raise ImportError(f"this version of openai-whisper has no readable {name}", name="whisper")


def model_urls() -> Mapping[str, str]:
    """Its models: name -> where the file is; the URL's last but one part is the file's SHA-256."""
    return _table("_MODELS")  # type: ignore[return-value]


def alignment_dumps() -> Mapping[str, bytes]:
    """Model's name -> the heads that its words' times are read from, dumped as in `whisper`."""
    return _table("_ALIGNMENT_HEADS")  # type: ignore[return-value]
