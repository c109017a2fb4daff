"""Defines the measured costs and savings of one pair of caches, for tables and files."""

from dataclasses import dataclass

from slimwhisper.commands.approximate.pairs import FormPair
from slimwhisper.text import human_size


@dataclass(frozen=True, slots=True)
class MeasuredCache:
    """Counts over all recordings, against exact decoding (`kv` in both parts, same dtype).

    Edits: words or tokens inserted, deleted or replaced.
    """

    cross: str  # spec
    self_: str  # spec
    kept_cross: int  # bytes of one window
    kept_self: int  # bytes of one text
    kept_baseline: int  # bytes that keys and values of both take
    read: float  # bytes of the caches that a step of one row reads, at half of the text's context
    words: int  # of the exact transcripts
    word_edits: int
    reference_words: int  # 0: there are no references
    reference_edits: int
    exact_reference_edits: int  # the exact transcripts' own
    recordings: int
    recordings_changed: int  # those with other tokens
    tokens: int  # of the exact transcripts
    token_edits: int
    logit_error: float  # root mean square, relative to the exact logits' standard deviation
    seconds: float  # to decode all recordings, encoder included
    audio_seconds: float
    fallbacks: list[str]  # a line for each form that the guard replaced

    @property
    def kept(self) -> int:
        """Bytes of a window with one text."""
        return self.kept_cross + self.kept_self

    @property
    def times_smaller(self) -> float:
        """How many times smaller than the baseline."""
        return self.kept_baseline / self.kept

    @property
    def word_error(self) -> float:
        """Percent of the exact transcripts' words."""
        return 100 * self.word_edits / self.words

    @property
    def reference_error(self) -> float | None:
        """Percent of the references' words."""
        return 100 * self.reference_edits / self.reference_words if self.reference_words else None

    @property
    def token_error(self) -> float:
        """Percent of the exact transcripts' tokens."""
        return 100 * self.token_edits / self.tokens

    @property
    def loss(self) -> float:
        """In percentage points of the word error: against exact decoding or, if that is more, the
        increase against the references.
        """
        if not self.reference_words:
            return self.word_error
        lost = self.reference_edits - self.exact_reference_edits
        return max(self.word_error, 100 * lost / self.reference_words)

    @property
    def sample(self) -> str:
        """The amount of audio and text."""
        minutes = self.audio_seconds / 60
        return f"{self.recordings} recordings, {minutes:.1f} minutes, {self.words} words"

    @property
    def line(self) -> str:
        """For progress."""
        return f"{human_size(self.kept)}, loss {self.loss:.2f} %, {self.seconds:.1f} s"

    @property
    def title(self) -> str:
        """The pair's title."""
        return FormPair(self.cross, self.self_).title
