"""What is known of languages, in languages.toml: words that say where sentences and lines end, and
scripts.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _tables() -> Any:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def words(table: str, language: str | None = None) -> frozenset[str]:
    """The words of a table, or of a language's row in it; none for other languages."""
    found = _tables()[table]
    return frozenset((found if language is None else found.get(language, "")).split())
