"""The voices that training uses, and how they say the digits: catalogue.toml."""

import tomllib
from pathlib import Path
from typing import Any

CATALOGUE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SPELLED = {language: words.split() for language, words in CATALOGUE["spelled"].items()}
WORDS = tuple(SPELLED["en"])
SPEAKERS = tuple(CATALOGUE["speakers"])
