"""Who spoke in a live stream: a name for each segment, at the stream's end.

A segment's audio is gone by then, so its voice is kept when it is spoken. At the end, each voice is
compared with those of the speakers before it (leader clustering), speakers whose voices turn out to
be the same are one, and each segment is named by the nearest voice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.speakers.choice import UNNAMED
from slimwhisper.speakers.embedding import embed_voice, unit
from slimwhisper.speakers.known import voice_of
from slimwhisper.types import SAMPLE_RATE

Samples = NDArray[np.float32]  # [n], at 16 kHz
Voice = NDArray[np.float32]  # unit vector [d]

MOST = 4 * SAMPLE_RATE  # samples of a segment, that its voice is told by
# the cosine at which a segment has the voice of a speaker; a short one is further from its own
SAME, SAME_SHORT = 0.45, 0.2
JOIN = 0.55  # the cosine at which two speakers are one
LONG = 2.5  # seconds of a segment from which on SAME holds
LEAST = 0.8  # seconds of a segment that can be the first of a speaker
MOST_WEIGHT = 5.0  # seconds of a segment that count for a speaker's voice


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment's voice. place: of the caller, to find the segment again."""

    place: tuple[int, int]
    voice: Voice
    seconds: float


class LiveSpeakers:
    """The speakers of one stream."""

    def __init__(self, known: Sequence[tuple[str, str]] = ()) -> None:
        """known: names, each with the path of a recording. Raises AudioError, DependencyError."""
        # a reference counts as one long segment
        self._known = {name: MOST_WEIGHT * voice_of(path) for name, path in known}
        self._segments: list[SpokenSegment] = []

    def hear(self, place: tuple[int, int], audio: Samples) -> None:
        """Keep a segment's voice. place: two numbers, as the result of `named` has them; audio:
        float32 [n].
        """
        if len(audio):
            voice = embed_voice(ArraySamples(audio), [(0, min(len(audio), MOST))])
            self._segments.append(SpokenSegment(place, voice, len(audio) / SAMPLE_RATE))

    def named(self) -> list[tuple[int, int, str]]:
        """The place of each segment that was heard, and its speaker's name."""
        sums = self._known.copy()  # of each speaker's voices, weighted
        for segment in self._segments:
            voice, seconds = segment.voice, segment.seconds
            needed = SAME_SHORT + (SAME - SAME_SHORT) * min(seconds / LONG, 1.0)
            name = _nearest(sums, voice)
            if name is None or (seconds >= LEAST and unit(sums[name]) @ voice < needed):
                name = UNNAMED.format(len(sums) - len(self._known))
            sums[name] = sums.get(name, 0) + min(seconds, MOST_WEIGHT) * voice
        self._join(sums)
        return [(*s.place, _nearest(sums, s.voice) or "") for s in self._segments]

    def _join(self, sums: dict[str, Voice]) -> None:
        """Join the speakers whose voices are the same, the most similar first."""
        while True:
            pairs = [
                (float(unit(sums[a]) @ unit(sums[b])), a, b)
                for a, b in combinations(sums, 2)
                if not (a in self._known and b in self._known)
            ]
            cosine, first, second = max(pairs, key=itemgetter(0), default=(0.0, "", ""))
            if cosine < JOIN:
                return
            # the older one, or the known one, which is older
            sums[first] = sums[first] + sums.pop(second)


def _nearest(sums: Mapping[str, Voice], voice: Voice) -> str | None:
    return max(sums, key=lambda name: float(unit(sums[name]) @ voice), default=None)
