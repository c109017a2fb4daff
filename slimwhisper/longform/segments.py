"""Cuts a window's text into segments at its timestamps, as `whisper` does; and where to continue.

No model. Text that the model invented over silence has words that are too long, too short, or
improbable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from slimwhisper.engine.requests import Decoded
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Segment, Word

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # ignored; not affected by the options
_EDGE = 2.0  # seconds from a window's edges with too little context


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """The position of a window in its recording, in mel frames."""

    start: int
    frames: int  # of the recording in the window; the rest is padding
    content: int  # of the whole recording, or where a piece of it ends
    window: int  # padding included

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


def _after_silence(segment: Segment, span: WindowSpan, threshold: float, last: float) -> bool:
    return (
        segment.start - last > threshold
        or segment.start < threshold
        or segment.start - span.offset < _EDGE
    )


def _before_silence(
    segment: Segment, following: Segment | None, span: WindowSpan, threshold: float
) -> bool:
    next_start = span.offset + span.frames / FRAMES_PER_SECOND
    if following is not None and following.words:
        next_start = following.words[0].start
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


@dataclass(frozen=True, slots=True)
class WindowSegments:
    """A window's text, cut into segments at its timestamps."""

    segments: list[Segment]  # those without text still have their tokens
    seek: int  # mel frame to continue from, by the timestamps
    nothing_follows: bool  # the window ended with a single timestamp


def cut_at_timestamps(
    span: WindowSpan,
    result: Decoded,
    ratio: float,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    token_logprobs: bool,
) -> WindowSegments:
    """The segments of a window's text. ratio: its compression ratio. token_logprobs: keep them.

    Between two adjacent timestamps, one segment ends and the next begins. The text after the last
    such pair is unfinished, so the next window starts there, unless the text ends with a single
    timestamp: then nothing follows. Unlike in `whisper`, no segment ends after the recording.
    """
    tokens, timestamps = result.tokens, vocabulary.timestamps
    begin = timestamps.start
    offset, seconds = span.offset, MEL_FRAMES_PER_POSITION / FRAMES_PER_SECOND
    following, limit = span.start + span.frames, span.content / FRAMES_PER_SECOND

    def segment(start: float, end: float, first: int = 0, last: int | None = None) -> Segment:
        start, end = offset + start, offset + end
        if end > limit:  # a text after the recording's end keeps a moment of it
            latest = max(limit - seconds, offset) if start < end else limit
            start, end = min(start, latest), limit
        piece = tokens[first:last]
        logprobs = result.logprobs[first : first + len(piece)]
        return Segment(
            id=0,
            seek=span.start,
            start=start,
            end=end,
            text=tokenizer.decode([t for t in piece if vocabulary.is_text(t)]),
            tokens=list(piece),
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=ratio,
            no_speech_prob=result.no_speech_prob,
            token_logprobs=list(logprobs) if token_logprobs else None,
        )

    is_stamp = [t in timestamps for t in tokens]
    nothing_follows = is_stamp[-2:] == [False, True]
    ends = [i for i in range(1, len(tokens)) if is_stamp[i - 1] and is_stamp[i]]
    if not ends:
        stamps = [t for t in tokens if t in timestamps]
        duration = span.frames / FRAMES_PER_SECOND
        if stamps and stamps[-1] != begin:
            duration = (stamps[-1] - begin) * seconds
        return WindowSegments([segment(0.0, duration)], following, nothing_follows)
    done = (tokens[ends[-1] - 1] - begin) * MEL_FRAMES_PER_POSITION
    seek = span.start + min(done, span.window)
    if nothing_follows:
        ends.append(len(tokens))
        seek = following
    segments = [
        segment((tokens[i] - begin) * seconds, (tokens[j - 1] - begin) * seconds, i, j)
        for i, j in pairwise([0, *ends])
    ]
    return WindowSegments(segments, seek, nothing_follows)
