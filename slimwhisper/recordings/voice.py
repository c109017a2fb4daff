"""Where somebody may speak, to judge the texts that stand there."""

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE
from slimwhisper.voice_activity import FRAME, speech_probabilities

_MAYBE_SPEECH = 0.3  # lowest probability
_PEAK, _INAUDIBLE = 0.5, 1e-4  # of the samples of a block, scaled; a lower peak is silence
NEAR = 40  # mel frames from a stretch's ends where speech still counts as inside
FAINT_RUN, FAINT_SHARE = 0.3, 0.1  # most seconds of speech in one go, most of the audio


class SpeechFrames:
    """Where a recording may have speech, also quiet speech: more sensitive than `speech_regions`.

    Positions are mel frames of 10 ms.
    """

    def __init__(self, samples: Samples) -> None:
        """Reads all samples. Raises DependencyError without silero-vad."""

        def scaled(block: NDArray[np.float32]) -> NDArray[np.float32]:
            # the network hardly hears speech below -40 dB, which Whisper reads as any other
            return block * (_PEAK / max(float(np.abs(block).max(initial=0)), _INAUDIBLE))

        probabilities, _ = speech_probabilities(samples, prepare=scaled)
        #: whether each frame of `FRAME` samples may be speech: bool [frames]
        self.frames = np.frombuffer(probabilities, np.float32) >= _MAYBE_SPEECH

    def seconds(self, start: int, stop: int) -> float:
        """Seconds of speech between two positions."""
        return float(self._between(start, stop, 0).sum()) * FRAME / SAMPLE_RATE

    def heard(self, start: int, stop: int) -> bool:
        """Whether there is speech between two positions, or near them."""
        return bool(self._between(start, stop, NEAR).any())

    def is_faint(self, start: int, stop: int) -> bool:
        """Whether what may be speech is as short and rare as in laughter, music and cries: never as
        long as a short word, and little of the audio.
        """
        frames = self._between(start, stop, NEAR)
        edges = np.flatnonzero(np.diff(frames.astype(np.int8), prepend=0, append=0))
        longest = int(np.diff(edges)[::2].max(initial=0)) * FRAME / SAMPLE_RATE
        return longest < FAINT_RUN and bool(frames.sum() < FAINT_SHARE * len(frames))

    def _between(self, start: int, stop: int, near: int) -> NDArray[np.bool_]:
        first = max((start - near) * HOP_SAMPLES, 0) // FRAME
        return self.frames[first : -(-(stop + near) * HOP_SAMPLES // FRAME)]
