"""The flags of a window's segments. Pure functions: no model runs, and no text changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slimwhisper.trust import REASONS
from slimwhisper.trust.texts import is_common, is_credit, is_foreign, least_seconds, looping
from slimwhisper.types import Segment

COMPRESSION_RATIO = 2.4  # above: the window's text repeats itself; whisper's threshold
LOGPROB = -0.8  # average below; whisper's threshold is -1.0, and good text lies above -0.5
WORD_PROBABILITY = 0.5  # mean below, where words have probabilities
NO_SPEECH = 0.5  # probability above: evidence of silence; whisper's threshold is 0.6
SLACK = 0.5  # seconds of error in a segment's times
SLOW = 0.1  # of the fastest speech: slower than any speech
MIN_SOUND = 4.0  # seconds, for a text to be too short for it
CERTAIN_LANGUAGE = 0.8  # probability of a window's language above which a change is certain
NEIGHBOURS = 8  # segments before a window to look for loops in


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """What is known of a window besides its text."""

    sound: Callable[[float, float], float]  # seconds of sound between two times of the recording
    language: str | None = None  # code: of the text, if known
    changed: bool = False  # the language differs from that of the window before, and is uncertain


def flagged(
    segments: Sequence[Segment], evidence: WindowEvidence, before: Sequence[Segment]
) -> list[Segment]:
    """A window's segments with their flags. `before`: those of the windows before it."""
    neighbours = [*before[-NEIGHBOURS:], *segments]
    loops = looping([s.text for s in neighbours])[len(neighbours) - len(segments) :]
    return [
        _with(segment, _flags(segment, evidence) | ({"repeats"} if loop else set()))
        for segment, loop in zip(segments, loops, strict=True)
    ]


def with_loops(segments: Sequence[Segment]) -> list[Segment]:
    """All segments of a recording, with the flags of loops that continue in later segments."""
    loops = looping([s.text for s in segments])
    return [
        _with(s, {*s.flags, "repeats"}) if loop and s.text.strip() else s
        for s, loop in zip(segments, loops, strict=True)
    ]


def _with(segment: Segment, names: set[str]) -> Segment:
    flags = tuple(name for name in REASONS if name in names)
    return segment if flags == segment.flags else replace(segment, flags=flags)


def _flags(segment: Segment, evidence: WindowEvidence) -> set[str]:
    text, flags = segment.text, set[str]()
    if not text.strip():
        return flags
    if segment.compression_ratio > COMPRESSION_RATIO:
        flags.add("repeats")
    length, least = segment.end - segment.start, least_seconds(text)
    if least > length + SLACK:
        flags.add("too_fast")
    if length >= MIN_SOUND and least < SLOW * length:
        sound = evidence.sound(segment.start, segment.end)
        if sound >= MIN_SOUND and least < SLOW * sound:
            flags.add("too_few_words")
    if is_credit(text) or (is_common(text) and _over_silence(segment, least, evidence)):
        flags.add("invented")
    if evidence.changed or (evidence.language is not None and is_foreign(text, evidence.language)):
        flags.add("language_changed")
    if segment.avg_logprob < LOGPROB or _improbable_words(segment):
        flags.add("improbable")
    return flags


def _over_silence(segment: Segment, least: float, evidence: WindowEvidence) -> bool:
    """Whether there is evidence that a common phrase was not spoken: no speech by the model, or
    less sound than the phrase takes, or far more time.
    """
    return (
        segment.no_speech_prob > NO_SPEECH
        or max(least, SLOW * MIN_SOUND) < SLOW * (segment.end - segment.start)
        or evidence.sound(segment.start, segment.end) < least
    )


def _improbable_words(segment: Segment) -> bool:
    """Whether the words' mean probability is low, if the words have probabilities."""
    words = segment.words or ()
    return sum(w.probability for w in words) < WORD_PROBABILITY * len(words)
