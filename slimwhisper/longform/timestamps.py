"""Cuts a window's text into segments at its timestamps, as `whisper` does. No model."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from slimwhisper.engine.requests import Decoded
from slimwhisper.longform.hallucination import WindowSpan
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Segment

if TYPE_CHECKING:  # it imports numba, which is slow to start
    from whisper.tokenizer import Tokenizer


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
    tokenizer: "Tokenizer",
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
