"""What is refused of clients, of commands and of options, and how: tests/app/refusals.toml."""

import tomllib
from typing import Any

from tests.support.paths import ROOT

TABLES: dict[str, list[Any]] = tomllib.loads((ROOT / "tests/app/refusals.toml").read_text("utf-8"))
