"""The flags of a window's segments. No model runs, and no text changes.

How much of a window has sound is read from its spectrogram. Levels do not tell speech from music.
They do tell both from silence and steady noise, where Whisper invents text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slimwhisper.trust import REASONS
from slimwhisper.trust.texts import is_common, is_credit, is_foreign, least_seconds, looping
from slimwhisper.types import FRAMES_PER_SECOND, Segment

BACKGROUND_QUANTILE = 0.1  # of the levels of a window's frames
RISE = 6.0  # dB over the background; steady noise stays within three
INAUDIBLE = -60.0  # dB: lower backgrounds do not matter
REACH = 10  # mel frames of 10 ms before and after sound, for the dips within words


def has_sound(mel: Tensor) -> Tensor:
    """A window's log-mel spectrogram [n_mels, frames], as Whisper normalises it, without padding
    -> bool [frames]: whether a frame is louder than the window's background.
    """
    if mel.shape[1] == 0:
        return torch.zeros(0, dtype=torch.bool)
    power = (mel.float() * 4 - 4) * (torch.log(torch.tensor(10.0)))  # whisper: (log10 + 4) / 4
    level = 10 * power.logsumexp(dim=0) / torch.log(torch.tensor(10.0))
    level -= 10 * torch.log10(torch.tensor(float(mel.shape[0])))  # the bins' mean
    background = level.quantile(BACKGROUND_QUANTILE).clamp(min=INAUDIBLE - RISE)
    loud = (level > background + RISE).float()
    width = 2 * REACH + 1
    return torch.nn.functional.max_pool1d(loud[None], width, stride=1, padding=REACH)[0] > 0


class WindowSound:
    """How many seconds of a window have sound; computed at the first call."""

    def __init__(self, mel: Callable[[], Tensor], offset: float) -> None:
        """mel: returns [n_mels, frames], without padding. offset: of its start, in seconds."""
        self._mel, self._offset = mel, offset
        self._has_sound: Tensor | None = None

    def __call__(self, start: float, end: float) -> float:
        """Seconds of sound between two times of the recording."""
        if self._has_sound is None:
            self._has_sound = has_sound(self._mel())
        first, last = (max(round((t - self._offset) * FRAMES_PER_SECOND), 0) for t in (start, end))
        return float(self._has_sound[first:last].sum()) / FRAMES_PER_SECOND


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
