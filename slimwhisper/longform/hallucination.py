"""Hallucinations, by whisper's rules, and where to continue after them. Needs only words' times.

Text that the model invented over silence has words that are too long, too short, or improbable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slimwhisper.types import FRAMES_PER_SECOND, WINDOW_FRAMES, Segment, Word

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # ignored; not affected by the options
_EDGE = 2.0  # seconds from a window's edges with too little context


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """The position of a window in its recording, in mel frames."""

    start: int
    frames: int  # of the recording in the window; the rest is padding
    content: int  # of the whole recording, or where a piece of it ends
    window: int = WINDOW_FRAMES  # padding included

    @property
    def offset(self) -> float:
        """The start of the window, in seconds."""
        return self.start / FRAMES_PER_SECOND

    @property
    def end(self) -> float:
        """The end of the window, padding included, in seconds."""
        return (self.start + self.window) / FRAMES_PER_SECOND


def leading_silence(segments: Sequence[Segment], span: WindowSpan, threshold: float) -> int | None:
    """Where to decode again if silence at the start may have caused the window's text: the mel
    frame at which the first words start, if they are anomalous and more than `threshold` seconds
    precede them; else None.
    """
    first = _next_with_words(segments)
    if first is None or not is_anomaly(first):
        return None
    gap = first.start - span.offset
    return span.start + round(gap * FRAMES_PER_SECOND) if gap > threshold else None


def before_hallucination(
    segments: Sequence[Segment], span: WindowSpan, threshold: float, last_speech: float
) -> tuple[list[Segment], int | None]:
    """The segments before the first hallucination that is between silences or hallucinations.

    Also the mel frame to continue from; None if all segments are kept.
    `threshold`: seconds of pause that count as silence. `last_speech`: seconds, before the window.
    """
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomaly(segment):
            following = _next_with_words(segments[i + 1 :])
            if _after_silence(segment, span, threshold, last_speech) and _before_silence(
                segment, following, span, threshold
            ):
                seek = round(max(span.offset + 1, segment.start) * FRAMES_PER_SECOND)
                if span.content / FRAMES_PER_SECOND - segment.end < threshold:
                    seek = span.content
                return list(segments[:i]), seek
        last_speech = segment.end
    return list(segments), None


def _after_silence(
    segment: Segment, span: WindowSpan, threshold: float, last_speech: float
) -> bool:
    return (
        segment.start - last_speech > threshold
        or segment.start < threshold
        or segment.start - span.offset < _EDGE
    )


def _before_silence(
    segment: Segment, following: Segment | None, span: WindowSpan, threshold: float
) -> bool:
    if following is not None and following.words:
        next_start = following.words[0].start
    else:
        next_start = span.offset + span.frames / FRAMES_PER_SECOND
    return (
        next_start - segment.end > threshold
        or (following is not None and is_anomaly(following))
        or span.end - segment.end < _EDGE
    )


def is_anomaly(segment: Segment) -> bool:
    """Whether the first eight words are mostly anomalous."""
    words = [w for w in segment.words or () if w.word not in _PUNCTUATION][:8]
    score = sum(anomaly_score(word) for word in words)
    return bool(segment.words) and (score >= 3 or score + 0.01 >= len(words))


def anomaly_score(word: Word) -> float:
    """How anomalous a word is; 0 for a normal one."""
    duration = word.end - word.start
    score = 1.0 if word.probability < 0.15 else 0.0
    if duration < 0.133:
        score += (0.133 - duration) * 15
    if duration > 2.0:
        score += duration - 2.0
    return score


def _next_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((s for s in segments if s.words), None)
