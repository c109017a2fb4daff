"""What clients send that is refused, and how it is said: tests/app/refusals.toml."""

import tomllib
from typing import Any

from tests.support.paths import ROOT

TABLES: dict[str, list[Any]] = tomllib.loads(
    (ROOT / "tests/app/refusals.toml").read_text(encoding="utf-8")
)
