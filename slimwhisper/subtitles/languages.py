"""The tables of languages.toml: words at which sentences and lines end, and scripts."""

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
    rows = _tables()[table]
    return frozenset((rows if language is None else rows.get(language, "")).split())
