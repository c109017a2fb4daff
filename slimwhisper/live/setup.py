"""The settings that all updates of a stream share: its checked options and its sampling rules."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from slimwhisper.audio.mel import NEAR
from slimwhisper.engine.requests import Rules
from slimwhisper.errors import OptionError
from slimwhisper.live.types import LiveOptions
from slimwhisper.longform.requests import make_rules
from slimwhisper.option_group import ModelFacts, check_names, check_rows, plain_values
from slimwhisper.options import Options, make_options
from slimwhisper.speakers.choice import as_pairs, check_known, require
from slimwhisper.tokens.vocabulary import Vocabulary, language_code
from slimwhisper.types import FRAMES_PER_SECOND, SAMPLE_RATE, WINDOW_FRAMES, Dims

END_SILENCE_FRAMES = 2 * FRAMES_PER_SECOND  # mel frames of silence at least, at a window's end
EXTRA_TOKENS = 12  # tokens that an update may sample beyond the share of its audio


@dataclass(frozen=True, eq=False)
class UpdateSettings:
    """How the updates of an utterance are decoded.

    Attributes:
        dims: The dimensions of the model.
        vocabulary: The model's vocabulary.
        live: The options of the stream.
        options: The options of a transcription that follow from them.
        first_rules: The sampling rules of a text from its first token on.
        later_rules: The sampling rules of text after committed text, which may be empty.
    """

    dims: Dims
    vocabulary: Vocabulary
    live: LiveOptions
    options: Options
    first_rules: Rules
    later_rules: Rules

    @staticmethod
    def of(facts: ModelFacts, live: LiveOptions) -> "UpdateSettings":
        """Make the settings of a stream.

        Args:
            facts: What is known of the model, shortened to `live.window`.
            live: The options of the stream.

        Returns:
            The settings.

        Raises:
            OptionError: When an option has an invalid value.
            DependencyError: When speakers are requested and a package for them is not installed.
        """
        check(live)
        dims, vocabulary = facts.dims, facts.vocabulary
        options = make_options(
            replace(facts, name="this model"),
            task=live.task,
            language=live.language,
            initial_prompt=live.prompt,
            hotwords=live.hotwords,
            without_timestamps=True,
        )
        rules = make_rules(dims, options, vocabulary)
        later = replace(rules, suppress_first=torch.empty(0, dtype=torch.int64))
        return UpdateSettings(dims, vocabulary, live, options, rules, later)

    @property
    def language(self) -> str | None:
        """The code of the language. None means that it is detected in each utterance."""
        if self.options.language is not None:
            return language_code(self.options.language, self.vocabulary)
        return None if self.vocabulary.languages else "en"

    @property
    def full_frames(self) -> int:
        """The mel frames from which a buffer is cut, as the next update would exceed `max_frames`.

        Without turns a buffer is cut only when it exceeds `max_frames`, so that what is committed
        is one text.
        """
        if not self.live.turns:
            return self.max_frames
        update_frames = round(self.live.update * FRAMES_PER_SECOND)
        return max(self.max_frames - update_frames, self.max_frames // 2)

    @property
    def max_frames(self) -> int:
        """The most mel frames of a buffer in an update. A longer one is cut first."""
        most = self.dims.window_frames - END_SILENCE_FRAMES
        return min(most, self.dims.window_frames * 2 // 3) if self.live.turns else most

    @property
    def heard_frames(self) -> int:
        """The most mel frames of an update with those of what was said before its buffer.

        They fit into a "near" window, which is not made longer. More of what was said before did
        not help. A model that is trained on windows as long as their audio hears none of it.
        """
        if self.options.audio_window == "auto":
            return 0
        return min(NEAR, self.dims.window_frames) - END_SILENCE_FRAMES

    def usual_tokens(self, frames: int) -> int:
        """Return the most tokens to sample for some audio.

        This is the share of the audio in the limit for 30 s, and `EXTRA_TOKENS`.

        Args:
            frames: The mel frames of the audio.

        Returns:
            The number of tokens.
        """
        return EXTRA_TOKENS + -(-self.later_rules.sample_len * frames // WINDOW_FRAMES)

    @property
    def padding(self) -> int:
        """The samples of audio before the start of speech that belong to its buffer."""
        return self.live.prefix_padding_ms * SAMPLE_RATE // 1000


def live_options(**values: Any) -> LiveOptions:
    """Make the options of a stream.

    Args:
        **values: The fields of `LiveOptions`.

    Returns:
        The checked options.

    Raises:
        OptionError: When an option has an unknown name or an invalid value.
        DependencyError: When speakers are requested and a package for them is not installed.
    """
    check_names(LiveOptions, values)
    values = plain_values(values)
    if "known_speakers" in values:
        values["known_speakers"] = as_pairs(values["known_speakers"] or ())
    options = LiveOptions(**values)
    check(options)
    return options


def check(live: LiveOptions) -> None:
    """Check the options of a stream for what is invalid for every model.

    Args:
        live: The options.

    Raises:
        OptionError: When a value is invalid.
        DependencyError: When speakers are requested and a package for them is not installed.
    """
    check_rows(live)
    for key in ("words", "turns", "condition_on_previous_text"):
        if not isinstance(getattr(live, key), bool):
            raise OptionError(f"{key} {getattr(live, key)!r} is neither True nor False")
    if live.known_speakers:
        check_known(live.known_speakers)
    if live.diarize:
        require("embedding", "diarize")
