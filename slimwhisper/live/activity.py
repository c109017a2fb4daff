"""Where speech begins and ends while it is going on: hysteresis over silero's probabilities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.vad import DROP, FRAME, SpeechStream
from slimwhisper.types import SAMPLE_RATE

# Frames judged together. The network's cost is mostly that of calling it, 0.8 ms.
BLOCK_FRAMES = 6
BLOCK = BLOCK_FRAMES * FRAME  # samples: 192 ms


@dataclass(frozen=True, slots=True)
class Change:
    """Speech begins, or is over."""

    speech: bool
    # samples since the stream began: of the first frame with speech, or the end of the silence
    # that was long enough
    at: int


class Activity:
    """The voice activity of one stream, judged as OpenAI's `server_vad` does.

    Speech begins with a frame of 32 ms whose probability is at least the threshold. It is over when
    the probability stays below the threshold less `DROP` for the silence duration.
    """

    def __init__(self, threshold: float, silence_ms: int) -> None:
        self.speech = SpeechStream()
        self.change(threshold, silence_ms)
        self.heard = 0  # samples
        self.speaking = False
        self.spoken = 0  # samples: where the last frame with speech ended

    def change(self, threshold: float, silence_ms: int) -> None:
        """Judge by these from now on."""
        self.threshold = threshold
        self.silence = silence_ms * SAMPLE_RATE // 1000

    def stop(self) -> None:
        """Whoever speaks has begun anew: the next frame with speech begins it again."""
        self.speaking = False

    def hear(
        self, block: NDArray[np.float32], judged: NDArray[np.float32] | None = None
    ) -> list[Change]:
        """float32 [n] samples, the next ones -> what changes in them. A last frame that is not
        whole is judged with silence after it. judged: the probabilities of its frames, if known.
        """
        if judged is None:
            judged = self.speech.probabilities(block)
        changes: list[Change] = []
        end = self.heard + len(block)
        for number, probability in enumerate(judged.tolist()):
            start = self.heard + number * FRAME
            stop = min(start + FRAME, end)
            if probability >= self.threshold - (DROP if self.speaking else 0.0):
                self.spoken = stop
                if not self.speaking:
                    self.speaking = True
                    changes.append(Change(True, start))
            elif self.speaking and stop - self.spoken >= self.silence:
                self.speaking = False
                changes.append(Change(False, stop))
        self.heard = end
        return changes
