"""Readable subtitles: sentences and their lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slimwhisper.option_group import ModelFacts, OptionGroup, option


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(OptionGroup):
    """How segments are cut. It is an option of slimwhisper.

    Attributes:
        sentences: Whether to make each segment a sentence, or a part of one, that can be read as a
            subtitle. It implies `word_timestamps`. The default is False.
    """

    sentences: bool = option(
        False,
        "make each segment a sentence, or a part of one, that can be read as a subtitle; "
        "implies --word_timestamps True",
        section="words",
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Find the times of words if segments are to be sentences, which are cut between words.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others.
            model: The model that they are for.
        """
        if values.get("sentences"):
            values["word_timestamps"] = True
