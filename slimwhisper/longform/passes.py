"""What others do with a recording's segments: as windows are decoded, and once all is there.

The table of the passes that there are is `slimwhisper.recordings.passes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from torch import Tensor

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.segments import WindowSpan
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary
from slimwhisper.types import Segment, Transcript


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """What is known of a window besides its segments."""

    span: WindowSpan
    mel: Callable[[], Tensor]  # returns [n_mels, 3000], padding included
    tokenizer: Tokenizer
    before: Sequence[Segment]  # of the windows before it
    alignment: Alignment | None = None  # of its text, with `word_timestamps`
    stop: int = 0  # the mel frame of the recording where its text ends
    language: str | None = None  # code: of the text; None: the model knows one only
    # of the language, if it was detected to be another than that of the window before; else 1
    language_probability: float = 1.0


class WindowPass(Protocol):
    """A change to a window's segments, before they are reported."""

    def __call__(self, segments: Sequence[Segment], window: DecodedWindow) -> list[Segment]:
        """The changed copies."""


@dataclass(frozen=True, slots=True)
class TranscriptContext:
    """What is known of a recording besides its transcript."""

    options: RecordingOptions
    seconds: float
    vocabulary: Vocabulary
    tokenizer: Tokenizer  # of the transcript's language

    def spell(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        """A segment's tokens -> pieces of text with their tokens; timestamps have no text."""
        pieces: list[tuple[str, list[int]]] = []
        for is_text, run in groupby(tokens, self.vocabulary.is_text):
            words, parts = [""], [list(run)]
            if is_text:
                words, parts = self.tokenizer.split_to_word_tokens(parts[0])
            pieces += zip(words, parts, strict=True)
        return pieces


class Pass(Protocol):
    """A change to a finished transcript."""

    def __call__(self, transcript: Transcript, context: TranscriptContext) -> Transcript:
        """The changed copy."""


class Voice(Protocol):
    """Where there may be speech; all positions are mel frames."""

    def heard(self, start: int, stop: int) -> bool:
        """Whether between two positions, or near them."""

    def seconds(self, start: int, stop: int) -> float:
        """How much between two positions."""

    def is_faint(self, start: int, stop: int) -> bool:
        """Whether it is as short and rare as what is no speech."""


@dataclass(slots=True)
class Passes:
    """The passes of a recording, each in order."""

    # of words' times, where the segments are still as they were aligned
    times: list[WindowPass] = field(default_factory=list)
    windows: list[WindowPass] = field(default_factory=list)  # of segments with their numbers
    transcript: list[Pass] = field(default_factory=list)
    dropped: frozenset[str] = frozenset()  # flags of segments that are left out
    voice: Voice | None = None  # if it is known; windows without speech are not decoded

    def drops(self, segment: Segment) -> bool:
        """Whether a segment is left out of the text."""
        return not self.dropped.isdisjoint(segment.flags)
