"""Streaming voice activity: hysteresis over silero's speech probabilities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.vad import DROP, FRAME, SpeechStream
from slimwhisper.types import SAMPLE_RATE

# Frames per call of the network, whose cost is mostly that of the call, 0.8 ms.
BLOCK_FRAMES = 6
BLOCK = BLOCK_FRAMES * FRAME  # samples: 192 ms
SMALL_BLOCK = 2 * FRAME
SHORT_SILENCE = SAMPLE_RATE // 4  # samples of silence after which speech may be over


@dataclass(frozen=True, slots=True)
class SpeechChange:
    """The start or the end of speech."""

    speech: bool
    # samples since the stream began: of the first frame with speech, or the end of the silence
    # that ended it
    at: int


class VoiceActivity:
    """The voice activity of one stream, by the rules of OpenAI's `server_vad`.

    Speech starts with a frame of 32 ms whose probability is at least the threshold. It ends when
    the probability stays below `threshold - DROP` for the silence duration.
    """

    def __init__(self, threshold: float, silence_ms: int) -> None:
        self.stream = SpeechStream()
        self.configure(threshold, silence_ms)
        self.position = 0  # samples processed
        self.speaking = False
        self.speech_end = 0  # samples: the end of the last frame with speech

    def configure(self, threshold: float, silence_ms: int) -> None:
        """Set the threshold and the silence duration of the audio that follows."""
        self.threshold = threshold
        self.silence = silence_ms * SAMPLE_RATE // 1000

    def reset(self) -> None:
        """End the speech segment: the next frame with speech starts a new one."""
        self.speaking = False

    @property
    def block_size(self) -> int:
        """How many samples to process next: few before a silence is so long that speech may be
        over, and before it is, so that neither is noticed late. Only two sizes, as streams are
        processed together with those that need the same.
        """
        silence = self.position - self.speech_end
        ends = [end - silence for end in (SHORT_SILENCE, self.silence) if end > silence]
        soon = self.speaking and silence and ends and min(ends) < BLOCK
        return SMALL_BLOCK if soon else BLOCK

    def process(
        self, block: NDArray[np.float32], probabilities: NDArray[np.float32] | None = None
    ) -> list[SpeechChange]:
        """The changes in the next samples, float32 [n]. A partial last frame is padded with
        silence. probabilities: of its frames, float32; None: they are computed.
        """
        if probabilities is None:
            probabilities = self.stream.probabilities(block)
        changes: list[SpeechChange] = []
        end = self.position + len(block)
        for index, probability in enumerate(probabilities.tolist()):
            start = self.position + index * FRAME
            stop = min(start + FRAME, end)
            if probability >= self.threshold - (DROP if self.speaking else 0.0):
                self.speech_end = stop
                if not self.speaking:
                    self.speaking = True
                    changes.append(SpeechChange(True, start))
            elif self.speaking and stop - self.speech_end >= self.silence:
                self.speaking = False
                changes.append(SpeechChange(False, stop))
        self.position = end
        return changes
