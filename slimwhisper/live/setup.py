"""What all updates of a stream have in common: its options, checked, and the rules of sampling."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from slimwhisper.checkpoint.settings import Settings
from slimwhisper.engine.requests import Rules
from slimwhisper.engine.rules import make_rules
from slimwhisper.errors import OptionError
from slimwhisper.live.types import POLICIES, LiveOptions
from slimwhisper.options import make_options
from slimwhisper.tokens.vocabulary import Vocabulary, language_code
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    MOST_VAD_MS,
    SAMPLE_RATE,
    WINDOW_FRAMES,
    Dims,
    Options,
)

QUIET_END = 2 * FRAMES_PER_SECOND  # mel frames of silence that end every window, at least
SPARE = 12  # tokens that an update may sample beyond the usual
LEAST_WINDOW = 4.0  # seconds
MOST_PADDING_MS = 5_000


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
    known = [f.name for f in fields(LiveOptions)]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise OptionError(f"unknown option {key!r} of a live stream; {hint}")
    options = LiveOptions(**values)
    check(options)
    return options


def check(live: LiveOptions) -> None:
    """Raise OptionError for values that no model can follow."""
    if live.policy not in POLICIES:
        raise OptionError(f"policy {live.policy!r} is not one of {', '.join(POLICIES)}")

    def need(key: str, fits: Callable[[Any], bool], what: str) -> None:
        value = getattr(live, key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise OptionError(f"{key} {value!r} is not {what}")

    need("update", lambda v: 0.1 <= v <= 30, "a number of seconds from 0.1 to 30")
    need("first", lambda v: 0 <= v <= 30, "a number of seconds from 0 to 30")
    need("vad_threshold", lambda v: 0 < v < 1, "between 0 and 1")
    for key, most in (("prefix_padding_ms", MOST_PADDING_MS), ("silence_duration_ms", MOST_VAD_MS)):
        value = getattr(live, key)
        if not (isinstance(value, int) and 0 <= value <= most):
            raise OptionError(f"{key} {value!r} is not a whole number from 0 to {most}")
    if live.window is not None:
        need("window", lambda v: LEAST_WINDOW <= v <= 30, "a number of seconds from 4 to 30")
    for key in ("words", "turns"):
        if not isinstance(getattr(live, key), bool):
            raise OptionError(f"{key} {getattr(live, key)!r} is neither True nor False")
