"""The times of words, from the text's attention to the audio. No model.

Text that the model invented over silence has words that are too long, too short, or improbable.

The results equal `whisper`'s to the last digit. `time_segments` processes a window; the other
functions are its steps.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from slimwhisper.engine.requests import Alignment
from slimwhisper.longform.passes import DecodedWindow, WindowSegments, WindowSpan
from slimwhisper.tokens.vocabulary import Tokenizer, text_only
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Segment, Word
from slimwhisper.word_times.options import WordOptions

_MEDIAN_WIDTH = 7  # encoder positions
_SENTENCE_ENDS = ".。!！?？"
_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # ignored; not affected by the options
_EDGE = 2.0  # seconds from a window's edges with too little context


@dataclass(slots=True)
class WordTiming:
    """A word, or "" once it is merged with a neighbour."""

    word: str
    tokens: list[int]
    start: float  # seconds from the window's start
    end: float
    probability: float


def time_segments(
    options: WordOptions, cut: WindowSegments, window: DecodedWindow
) -> WindowSegments:
    """Add words to a window's segments, skip hallucinations, and find where the next one starts."""
    span, last_speech = window.span, window.last_speech
    segments = attach_words(
        cut.segments, window.alignment, window.tokenizer, options, span.frames, last_speech
    )
    threshold, seek = options.hallucination_silence_threshold, cut.seek
    if not cut.nothing_follows:
        seek = _after_last_word(segments, span, threshold, seek)
    if threshold is not None:
        start = leading_silence(segments, span, threshold)
        if start is not None:
            return replace(cut, segments=[], seek=start, dropped=True, last_speech=last_speech)
        segments, start = before_hallucination(segments, span, threshold, last_speech)
        seek = seek if start is None else start
    end = last_word_end(segments)
    last_speech = last_speech if end is None else end
    return replace(cut, segments=segments, seek=seek, last_speech=last_speech)


def _after_last_word(
    segments: Sequence[Segment], span: WindowSpan, threshold: float | None, seek: int
) -> int:
    """The mel frame where the last word ends, or the window's end if that is within `threshold`."""
    end = last_word_end(segments)
    if end is None or end <= span.offset:
        return seek
    if threshold is not None and span.end - end <= threshold:
        return span.start + span.frames
    return round(end * FRAMES_PER_SECOND)


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


def last_word_end(segments: Sequence[Segment]) -> float | None:
    """The end of the last word, or of the last segment if there are no words, in seconds."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end
    return segments[-1].end if segments else None


def attention(alignment: Alignment, frames: int) -> torch.Tensor:
    """[len(text) + 1, p] floating: the attention of each text token, and of <|endoftext|>, to the
    window's positions with audio; over all alignment heads, filtered as in `whisper`.

    `frames`: mel frames of the recording in the window.
    """
    weights = alignment.scores[:, :, : frames // MEL_FRAMES_PER_POSITION].softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = _median((weights - mean) / deviation)
    # each text token is predicted, and therefore timed, by the token before it
    return weights.mean(dim=0)[alignment.before - 1 : -1]


def _median(weights: torch.Tensor) -> torch.Tensor:
    """[heads, n, p]: the median of `_MEDIAN_WIDTH` positions around each, reflected at the ends."""
    half = _MEDIAN_WIDTH // 2
    if weights.shape[-1] <= half:
        return weights
    padded = F.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, _MEDIAN_WIDTH, 1).sort().values[..., half]


def time_words(alignment: Alignment, tokenizer: Tokenizer, frames: int) -> list[WordTiming]:
    """The words of a window. `frames`: mel frames of the recording in it."""
    words, pieces = tokenizer.split_to_word_tokens([*alignment.text, tokenizer.eot])
    if not alignment.text or len(words) <= 1:  # the last is <|endoftext|>
        return []
    rows, positions = warp(-attention(alignment, frames).cpu().numpy())
    arrives = np.diff(rows, prepend=-1) > 0  # the first position of each row
    times = positions[arrives] * MEL_FRAMES_PER_POSITION / FRAMES_PER_SECOND
    timings, first = [], 0
    for word, tokens in zip(words[:-1], pieces[:-1], strict=True):
        stop = first + len(tokens)
        probability = float(np.mean(alignment.probs[first:stop]))
        timings.append(WordTiming(word, tokens, times[first], times[stop], probability))
        first = stop
    return timings


def warp(costs: NDArray[np.floating]) -> NDArray[np.int64]:
    """[n, p] -> the cheapest path, [2, length]: rows and positions. Sums are float64, and ties are
    resolved as in `whisper.timing.dtw`.

    One anti-diagonal is computed at a time: from the same row at the position before, from the row
    before at the same position, and from both before.
    """
    rows, positions = costs.shape
    skewed = np.full((rows, rows + positions), np.inf)
    skewed[:, :positions] = costs
    diagonals = np.ascontiguousarray(skewed.ravel()[:-rows].reshape(rows, -1).T)
    sums = np.full((rows + positions + 1, rows + 1), np.inf)  # [i + j, i]
    sums[0, 0] = 0
    equal = np.empty(rows, bool)
    for both, above, same, cost, result in zip(
        *(sums[:-2, :-1], sums[1:-1, :-1], sums[1:-1, 1:], diagonals, sums[2:, 1:]), strict=True
    ):
        np.minimum(both, above, out=result)
        np.minimum(result, same, out=result)
        np.equal(both, above, out=equal)
        np.copyto(result, same, where=equal)
        np.add(result, cost, out=result)
    i, j, path = rows, positions, list[tuple[int, int]]()
    while i and j:
        path.append((i - 1, j - 1))
        both, (above, same) = sums[i + j - 2, i - 1], sums[i + j - 1, i - 1 : i + 1]
        if both < above and both < same:
            i, j = i - 1, j - 1
        elif above < both and above < same:
            i -= 1
        else:
            j -= 1
    path += [(row, -1) for row in range(i - 1, -1, -1)]  # where costs are not numbers
    return np.array(path[::-1]).T


def _merge_punctuations(timings: Sequence[WordTiming], prepended: str, appended: str) -> None:
    """Join punctuation with the word after it, or before it; its own word becomes empty."""
    following = timings[-1]
    for timing in timings[-2::-1]:
        if timing.word.startswith(" ") and timing.word.strip() in prepended:
            following.word = timing.word + following.word
            following.tokens = timing.tokens + following.tokens
            timing.word, timing.tokens = "", []
        else:
            following = timing
    previous = timings[0]
    for timing in timings[1:]:
        if not previous.word.endswith(" ") and timing.word in appended:
            previous.word += timing.word
            previous.tokens = previous.tokens + timing.tokens
            timing.word, timing.tokens = "", []
        else:
            previous = timing


def attach_words(
    segments: Sequence[Segment],
    alignment: Alignment | None,
    tokenizer: Tokenizer,
    options: WordOptions,
    frames: int,
    last_speech: float,
) -> list[Segment]:
    """One window's segments with their words, and with start and end corrected by them.

    `options` say which punctuation belongs to the next or the previous word. `frames`: mel frames
    of the recording in the window. `last_speech`: the end of the last word before it, in seconds.
    """
    if not segments:
        return []
    offset = segments[0].seek / FRAMES_PER_SECOND
    timings = time_words(alignment, tokenizer, frames) if alignment else []
    durations = [t.end - t.start for t in timings if t.end != t.start]
    median = min(0.7, float(np.median(durations))) if durations else 0.0
    if timings:
        if durations:
            _shorten_at_sentence_ends(timings, longest=2 * median)
        _merge_punctuations(timings, options.prepend_punctuations, options.append_punctuations)
    rest = deque(timings)
    result = []
    for segment in segments:
        words = _pop_words(rest, len(text_only(segment.tokens, tokenizer)), offset)
        result.append(_fit(segment, words, median, last_speech))
        if words:
            last_speech = result[-1].end
    return result


def _shorten_at_sentence_ends(timings: Sequence[WordTiming], longest: float) -> None:
    """Shorten full stops and the words after them, which include pauses, to `longest` seconds."""
    for before, timing in pairwise(timings):
        if timing.end - timing.start > longest:
            if timing.word in _SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif before.word in _SENTENCE_ENDS:
                timing.start = timing.end - longest


def _pop_words(rest: deque[WordTiming], tokens: int, offset: float) -> list[Word]:
    """Take the words of the next `tokens` tokens from `rest`; `offset`: seconds to add."""
    words, count = [], 0
    while rest and count < tokens:
        timing = rest.popleft()
        count += len(timing.tokens)
        if timing.word:  # else merged with a neighbour
            start, end = round(offset + timing.start, 2), round(offset + timing.end, 2)
            words.append(Word(timing.word, float(start), float(end), float(timing.probability)))
    return words


def _fit(segment: Segment, words: list[Word], median: float, last_speech: float) -> Segment:
    """The segment with these words; start and end of segment and words are made to agree.

    median: seconds of a word. Much longer words at the segment's edges include a pause.
    """
    if not words:
        return replace(segment, words=[])
    words = list(words)
    longest = 2 * median
    if words[0].end - last_speech > 4 * median and (
        words[0].end - words[0].start > longest
        or (len(words) > 1 and words[1].end - words[0].start > 2 * longest)
    ):
        if len(words) > 1 and words[1].end - words[1].start > longest:
            boundary = max(words[1].end / 2, words[1].end - longest)
            words[0] = replace(words[0], end=boundary)
            words[1] = replace(words[1], start=boundary)
        words[0] = replace(words[0], start=max(0.0, words[0].end - longest))
    start, end = segment.start, segment.end
    if start < words[0].end and start - 0.5 > words[0].start:
        words[0] = replace(words[0], start=max(0.0, min(words[0].end - median, start)))
    else:
        start = words[0].start
    if end > words[-1].start and end + 0.5 < words[-1].end:
        words[-1] = replace(words[-1], end=max(words[-1].start + median, end))
    else:
        end = words[-1].end
    return replace(segment, start=start, end=end, words=words)
