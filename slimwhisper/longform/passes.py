"""A window and its segments, and what others do with them: as windows are decoded, and once all is
there.

The table of the passes that there are is `slimwhisper.recordings.passes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from torch import Tensor

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, text_only
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Transcript


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """The position of a window in its recording, in mel frames.

    Attributes:
        start: Where it starts.
        frames: The frames of the recording in the window. The rest is padding.
        content: The frames of the whole recording, or where a piece of it ends.
        window: The frames of the window, padding included.
    """

    start: int
    frames: int
    content: int
    window: int

    @property
    def offset(self) -> float:
        """The start of the window, in seconds."""
        return self.start / FRAMES_PER_SECOND

    @property
    def end(self) -> float:
        """The end of the window, padding included, in seconds."""
        return (self.start + self.window) / FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class WindowSegments:
    """A window's text, cut into segments, and where to continue.

    Attributes:
        segments: The segments. Those without text still have their tokens.
        seek: The mel frame to continue from.
        nothing_follows: Whether the window ended with a single timestamp.
        dropped: Whether the window is discarded and decoded again from `seek`.
        last_speech: Where its last word, or the last one before it, ends, in seconds, if words have
            times.
    """

    segments: list[Segment]
    seek: int
    nothing_follows: bool
    dropped: bool = False
    last_speech: float = 0.0

    def text_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the tokens without timestamps, which an `Alignment` is asked for.

        Args:
            tokenizer: The tokenizer of the window's language.

        Returns:
            The tokens of all segments.
        """
        return tuple(text_only((t for s in self.segments for t in s.tokens), tokenizer))


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """What is known of a window besides its segments.

    Attributes:
        span: Where the window lies in the recording.
        mel: A function that returns its spectrogram [n_mels, 3000], padding included.
        tokenizer: The tokenizer of its language.
        before: The segments of the windows before it.
        alignment: How its text attends to its audio, if words have times and it has text.
        last_speech: Where the last word before it ends, in seconds, if words have times.
        stop: The mel frame of the recording at which its text ends.
        language: The code of its text's language. None means that the model knows one only.
        language_probability: The probability of the language, if it was detected to be another than
            that of the window before. Otherwise this is 1.
    """

    span: WindowSpan
    mel: Callable[[], Tensor]
    tokenizer: Tokenizer
    before: Sequence[Segment]
    alignment: Alignment | None = None
    last_speech: float = 0.0
    stop: int = 0
    language: str | None = None
    language_probability: float = 1.0


class WordPass(Protocol):
    """What adds words to a window's segments. A function of this form is one."""

    def __call__(self, cut: WindowSegments, window: DecodedWindow) -> WindowSegments:
        """Add words to the segments of a window, or find by them that it must be decoded again.

        Args:
            cut: The segments, as the timestamps of the text cut it.
            window: What is known of the window.

        Returns:
            The changed copy, with `last_speech`.
        """


class WindowPass(Protocol):
    """A change to a window's segments before they are reported. A function of this form is one."""

    def __call__(self, segments: Sequence[Segment], window: DecodedWindow) -> list[Segment]:
        """Change the segments of a window.

        Args:
            segments: The segments.
            window: What is known of the window.

        Returns:
            The changed copies.
        """


@dataclass(frozen=True, slots=True)
class TranscriptContext:
    """What is known of a recording besides its transcript.

    Attributes:
        options: The options of the recording.
        seconds: The length of the recording.
        vocabulary: The model's vocabulary.
        tokenizer: The tokenizer of the transcript's language.
    """

    options: RecordingOptions
    seconds: float
    vocabulary: Vocabulary
    tokenizer: Tokenizer

    def spell(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Split the tokens of a segment into pieces of text.

        Args:
            tokens: The tokens of the segment.

        Returns:
            The pieces with their tokens. Timestamps have no text.
        """
        pieces: list[tuple[str, list[int]]] = []
        for is_text, run in groupby(tokens, self.vocabulary.is_text):
            words, parts = [""], [list(run)]
            if is_text:
                words, parts = self.tokenizer.split_to_word_tokens(parts[0])
            pieces += zip(words, parts, strict=True)
        return pieces


class Pass(Protocol):
    """A change to a finished transcript. A function of this form is one."""

    def __call__(self, transcript: Transcript, context: TranscriptContext) -> Transcript:
        """Change a transcript.

        Args:
            transcript: The transcript.
            context: What is known of the recording.

        Returns:
            The changed copy.
        """


class Voice(Protocol):
    """Where there may be speech in a recording. All positions are mel frames of 10 ms."""

    def heard(self, start: int, stop: int) -> bool:
        """Return whether there may be speech between two positions, or near them.

        Args:
            start: The first position.
            stop: The last position.

        Returns:
            Whether there may be speech.
        """

    def seconds(self, start: int, stop: int) -> float:
        """Return how much speech there may be between two positions.

        Args:
            start: The first position.
            stop: The last position.

        Returns:
            The seconds of speech.
        """

    def is_faint(self, start: int, stop: int) -> bool:
        """Return whether speech between two positions is as short and rare as what is no speech.

        Args:
            start: The first position.
            stop: The last position.

        Returns:
            Whether it is.
        """


@dataclass(slots=True)
class Passes:
    """The passes of a recording, each list in the order in which they are applied.

    Attributes:
        words: What adds words to a window's segments. None means that they have none.
        times: The passes that change the times of words. Segments are still as they were aligned
            then.
        windows: The passes over a window's segments, which have their numbers then.
        transcript: The passes over the finished transcript.
        dropped: The flags of segments that are left out.
        speech: The regions with speech, samples [start, stop) in order, of a `SpeechRecording`,
            which decodes nothing else.
        voice: Where there may be speech, if that is known. Windows without speech are not decoded.
    """

    words: WordPass | None = None
    times: list[WindowPass] = field(default_factory=list)
    windows: list[WindowPass] = field(default_factory=list)
    transcript: list[Pass] = field(default_factory=list)
    dropped: frozenset[str] = frozenset()
    speech: Sequence[tuple[int, int]] | None = None
    voice: Voice | None = None

    def drops(self, segment: Segment) -> bool:
        """Return whether a segment is left out of the text.

        Args:
            segment: The segment.

        Returns:
            Whether it is left out.
        """
        return not self.dropped.isdisjoint(segment.flags)
