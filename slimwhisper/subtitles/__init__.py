"""Readable subtitles: sentences, and their lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slimwhisper.option_group import ModelFacts, OptionGroup, option


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(OptionGroup):
    """How segments are cut."""

    sentences: bool = option(
        False,
        "make each segment a sentence, or a part of one, that can be read as a subtitle; "
        "implies --word_timestamps True",
        section="words",
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """They are cut between words."""
        if values.get("sentences"):
            values["word_timestamps"] = True
