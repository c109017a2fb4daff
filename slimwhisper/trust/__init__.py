"""Flags of doubtful segments. They change no text.

`REASONS` has the name of each flag with its description for people, the most serious first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slimwhisper.errors import OptionError
from slimwhisper.option_group import ModelFacts, OptionGroup, option
from slimwhisper.text import not_one_of
from slimwhisper.types import NOT_IN_AUDIO as NOT_IN_AUDIO

# name in `Segment.flags`: description for people; the most serious first
REASONS: dict[str, str] = {
    NOT_IN_AUDIO: "the line is not in the audio",
    "repeats": "the text repeats itself",
    "invented": "Whisper often makes up such text over silence",
    "text_missing": "speech before or after it has no text",
    "too_few_words": "hardly any words for so much sound",
    "too_fast": "faster than people speak",
    "language_changed": "not in the language of the rest",
    "improbable": "the model was unsure",
}


@dataclass(frozen=True, kw_only=True)
class TrustOptions(OptionGroup):
    """What is left out of the text. It is an option of slimwhisper.

    Attributes:
        drop: The names of flags, such as ("invented", "repeats"). Segments with one of them are
            left out of the text, and kept as `Transcript.dropped`. The names are those of
            `slimwhisper.trust.REASONS`. () leaves nothing out; the server's default is ("invented",
            "repeats").
    """

    drop: tuple[str, ...] = option(
        (),
        "leave segments with one of these flags out of the text, such as invented,repeats; json "
        "keeps them, as dropped [none; serve: invented,repeats]",
        section="thresholds",
    )

    def check(self, model: ModelFacts) -> None:
        """Check that the names in `drop` are names of flags.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When one of them is not.
        """
        check_flags(self.drop)


def check_flags(names: Iterable[str]) -> None:
    """Check that names are names of flags that a transcript may have.

    Args:
        names: The names.

    Raises:
        OptionError: When one of them is not.
    """
    known = [name for name in REASONS if name != NOT_IN_AUDIO]
    for name in names:
        if name not in known:
            raise OptionError(f"drop {not_one_of(name, known, ':')}")
