"""What all updates of a stream have in common: its options, checked, and the rules of sampling."""

from dataclasses import dataclass
from typing import Any

from slimwhisper.checkpoint.settings import Settings
from slimwhisper.engine.requests import Rules
from slimwhisper.engine.rules import make_rules
from slimwhisper.errors import OptionError
from slimwhisper.live.types import LiveOptions
from slimwhisper.options import check_names, check_rows, make_options
from slimwhisper.tokens.vocabulary import Vocabulary, language_code
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    SAMPLE_RATE,
    WINDOW_FRAMES,
    Dims,
    Options,
)

QUIET_END = 2 * FRAMES_PER_SECOND  # mel frames of silence that end every window, at least
SPARE = 12  # tokens that an update may sample beyond the usual


@dataclass(frozen=True, eq=False)
class Setup:
    """How the updates of an utterance are decoded."""

    dims: Dims
    vocabulary: Vocabulary
    live: LiveOptions
    options: Options
    first: Rules  # of a text's first token
    later: Rules  # of what follows committed text, which may end at once
    most: int  # mel frames of audio that an update hears; more are cut first

    @staticmethod
    def of(
        dims: Dims, vocabulary: Vocabulary, live: LiveOptions, settings: Settings | None = None
    ) -> "Setup":
        """dims: of the model, shortened if `live.window` says so. Raises OptionError."""
        check(live)

        def options(**changes: Any) -> Options:
            return make_options(
                dims,
                vocabulary=vocabulary,
                settings=settings,
                task=live.task,
                language=live.language,
                initial_prompt=live.prompt,
                hotwords=live.hotwords,
                without_timestamps=True,
                **changes,
            )

        chosen = options()
        window = dims.window_frames
        return Setup(
            dims,
            vocabulary,
            live,
            chosen,
            make_rules(dims, chosen, vocabulary),
            make_rules(dims, options(suppress_blank=False), vocabulary),
            min(window - QUIET_END, window * 2 // 3),
        )

    @property
    def language(self) -> str | None:
        """The code of the language; None: to be detected in each utterance."""
        if self.options.language is not None:
            return language_code(self.options.language, self.vocabulary)
        return None if self.vocabulary.languages else "en"

    @property
    def full(self) -> int:
        """Mel frames of a buffer that is cut: the next update would not hear all that is new."""
        return max(self.most - round(self.live.update * FRAMES_PER_SECOND), self.most // 2)

    def usual(self, frames: int) -> int:
        """The most tokens that so many mel frames have: their share of those that may be sampled in
        30 s, and some more.
        """
        return SPARE + -(-self.later.sample_len * frames // WINDOW_FRAMES)

    @property
    def padding(self) -> int:
        """Samples kept before speech begins."""
        return self.live.prefix_padding_ms * SAMPLE_RATE // 1000


def live_options(**values: Any) -> LiveOptions:
    """LiveOptions of these values. Raises OptionError for names or values that it cannot have."""
    check_names(LiveOptions, values)
    options = LiveOptions(**values)
    check(options)
    return options


def check(live: LiveOptions) -> None:
    """Raise OptionError for values that no model can follow."""
    check_rows(live)
    for key in ("words", "turns"):
        if not isinstance(getattr(live, key), bool):
            raise OptionError(f"{key} {getattr(live, key)!r} is neither True nor False")
