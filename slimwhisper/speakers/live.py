"""Who speaks in a live stream: a name for each segment when it ends, and again for all at the end.

As each segment is named once it is spoken, its voice is compared with those of the speakers so far
(leader clustering). At the end, speakers whose voices turned out to be the same are one, and each
segment is named by the nearest voice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.speakers.choice import UNNAMED
from slimwhisper.speakers.clusters import unit
from slimwhisper.speakers.embedding import Stretch, embed_voice
from slimwhisper.speakers.encoder import WINDOW, load_encoder
from slimwhisper.speakers.known import voice_of
from slimwhisper.types import SAMPLE_RATE

Samples = NDArray[np.float32]  # [n], at 16 kHz
Voice = NDArray[np.float32]  # unit vector [d]

MAX_WINDOWS = 2  # of 1.6 s, that a segment's voice is told by
# the cosine at which a segment has the voice of a speaker; a short one is further from its own
SAME, SAME_SHORT = 0.75, 0.55
JOIN = 0.82  # the cosine at which two speakers are one
LONG = 2.5  # seconds of a segment from which on SAME holds
LEAST = 0.8  # seconds of a segment that can be the first of a speaker
MOST_WEIGHT = 5.0  # seconds of a segment that count for a speaker's voice


@dataclass(slots=True)
class Speaker:
    """A speaker, and the weighted sum of the voices heard."""

    name: str
    total: Voice
    known: bool = False  # by a reference recording

    @property
    def voice(self) -> Voice:
        return unit(self.total)


@dataclass(frozen=True, slots=True)
class NamedSegment:
    """A segment that has been named. place: of the caller, to find it again."""

    place: tuple[int, int]
    voice: Voice
    seconds: float
    speaker: Speaker = field(compare=False)


class LiveSpeakers:
    """The speakers of one stream."""

    def __init__(self, known: Sequence[tuple[str, str]] = ()) -> None:
        """known: names, each with the path of a recording. Raises AudioError, DependencyError."""
        # a reference counts as one long segment
        self._speakers = [Speaker(name, MOST_WEIGHT * voice_of(path), True) for name, path in known]
        self._named: list[NamedSegment] = []
        self._unnamed = 0

    def name(self, place: tuple[int, int], audio: Samples) -> str | None:
        """The speaker of a segment. place: two numbers, as the result of `corrected` has them;
        audio: float32 [n]. None: there is no audio.
        """
        if not len(audio):
            return None
        seconds = len(audio) / SAMPLE_RATE
        windows = min(max(1, round(len(audio) / WINDOW)), MAX_WINDOWS)
        stretch = Stretch((0, len(audio)), windows)
        voice = embed_voice(ArraySamples(audio), [stretch], load_encoder())
        needed = SAME_SHORT + (SAME - SAME_SHORT) * min(seconds / LONG, 1.0)
        nearest = self._nearest(voice)
        if nearest is not None and (seconds < LEAST or nearest.voice @ voice >= needed):
            speaker = nearest
        else:
            speaker = Speaker(UNNAMED.format(self._unnamed), np.zeros_like(voice))
            self._unnamed += 1
            self._speakers.append(speaker)
        speaker.total = speaker.total + min(seconds, MOST_WEIGHT) * voice
        self._named.append(NamedSegment(place, voice, seconds, speaker))
        return speaker.name

    def corrected(self) -> list[tuple[int, int, str]]:
        """The places of the segments whose speaker turned out to be another, and its name."""
        self._join()
        changes: list[tuple[int, int, str]] = []
        for segment in self._named:
            speaker = self._nearest(segment.voice)
            assert speaker is not None
            if speaker.name != segment.speaker.name:
                changes.append((*segment.place, speaker.name))
        return changes

    def _nearest(self, voice: Voice) -> Speaker | None:
        return max(self._speakers, key=lambda s: float(s.voice @ voice), default=None)

    def _join(self) -> None:
        """Join the speakers whose voices are the same, the most similar first."""
        while True:
            pairs = [
                (float(a.voice @ b.voice), a, b)
                for a, b in combinations(self._speakers, 2)
                if not (a.known and b.known)
            ]
            cosine, first, second = max(pairs, key=lambda pair: pair[0], default=(0.0, None, None))
            if first is None or second is None or cosine < JOIN:
                return
            # the older one, or the known one, which is older
            first.total = first.total + second.total
            self._speakers.remove(second)
