"""Which flags a window's segments get. Pure functions: no model runs, and no text changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slimwhisper.trust import REASONS
from slimwhisper.trust.pace import least_seconds
from slimwhisper.trust.phrases import is_common, is_credit
from slimwhisper.trust.repetition import looping
from slimwhisper.trust.scripts import is_foreign
from slimwhisper.types import Segment

COMPRESSION_RATIO = 2.4  # above: the window's text repeats itself; whisper's threshold
LOGPROB = -0.8  # average below; whisper's threshold is -1.0, and good text lies above -0.5
WORD_PROBABILITY = 0.5  # mean below, where words have probabilities
NO_SPEECH = 0.5  # probability above: evidence of silence; whisper's threshold is 0.6
SLACK = 0.5  # seconds that a segment's times may be wrong
SLOW = 0.1  # of the fastest speech: nobody speaks so slowly
LEAST_SOUND = 4.0  # seconds, for a text to be too short for it
SURE = 0.8  # probability of a window's language that leaves no doubt of a change
NEIGHBOURS = 8  # segments before a window that its own are compared with


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a window besides its text."""

    sound: Callable[[float, float], float]  # seconds of sound between two times of the recording
    language: str | None = None  # code: what its text should be in; None: not known
    changed: bool = False  # its language is another than before, and not certain


def flagged(segments: Sequence[Segment], heard: Heard, before: Sequence[Segment]) -> list[Segment]:
    """A window's segments with their flags. `before`: those of the windows before it."""
    known = [*before[-NEIGHBOURS:], *segments]
    loops = looping([s.text for s in known])[len(known) - len(segments) :]
    return [
        _with(segment, _flags(segment, heard) | ({"repeats"} if loop else set()))
        for segment, loop in zip(segments, loops, strict=True)
    ]


def with_loops(segments: Sequence[Segment]) -> list[Segment]:
    """All segments of a recording, with the flags that only a look at what follows gives."""
    loops = looping([s.text for s in segments])
    return [
        _with(s, {*s.flags, "repeats"}) if loop and s.text.strip() else s
        for s, loop in zip(segments, loops, strict=True)
    ]


def _with(segment: Segment, names: set[str]) -> Segment:
    flags = tuple(name for name in REASONS if name in names)
    return segment if flags == segment.flags else replace(segment, flags=flags)


def _flags(segment: Segment, heard: Heard) -> set[str]:
    text, found = segment.text, set[str]()
    if not text.strip():
        return found
    if segment.compression_ratio > COMPRESSION_RATIO:
        found.add("repeats")
    length, least = segment.end - segment.start, least_seconds(text)
    if least > length + SLACK:
        found.add("too_fast")
    if length >= LEAST_SOUND and least < SLOW * length:
        sound = heard.sound(segment.start, segment.end)
        if sound >= LEAST_SOUND and least < SLOW * sound:
            found.add("too_few_words")
    if is_credit(text) or (is_common(text) and _over_silence(segment, least, heard)):
        found.add("invented")
    if heard.changed or (heard.language is not None and is_foreign(text, heard.language)):
        found.add("language_changed")
    if segment.avg_logprob < LOGPROB or _guessed(segment):
        found.add("improbable")
    return found


def _over_silence(segment: Segment, least: float, heard: Heard) -> bool:
    """Whether there is evidence that a common phrase was not said: the model heard no speech, or
    there is less sound than the phrase takes, or far more time.
    """
    return (
        segment.no_speech_prob > NO_SPEECH
        or max(least, SLOW * LEAST_SOUND) < SLOW * (segment.end - segment.start)
        or heard.sound(segment.start, segment.end) < least
    )


def _guessed(segment: Segment) -> bool:
    """Whether the words' mean probability is low, where it is known."""
    words = segment.words or ()
    return sum(w.probability for w in words) < WORD_PROBABILITY * len(words)
