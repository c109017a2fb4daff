"""Splits the audio of a stream into speech buffers and utterances, by its voice activity:
hysteresis over silero's speech probabilities.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.live.setup import UpdateSettings
from slimwhisper.live.speech_buffer import SHORT_SILENCE, SpeechBuffer
from slimwhisper.live.types import LiveEvent, SpeechStarted, SpeechStopped
from slimwhisper.live.utterance import History, Utterance
from slimwhisper.speakers.live import LiveSpeakers
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import DROP, FRAME, SpeechStream

Samples = NDArray[np.float32]  # [n], at 16 kHz


# Frames per call of the network, whose cost is mostly that of the call, 0.8 ms.
BLOCK_FRAMES = 6
BLOCK = BLOCK_FRAMES * FRAME  # samples: 192 ms
SMALL_BLOCK = 2 * FRAME


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


class SpeechSegmenter:
    """Puts the audio with speech into buffers, which belong to utterances."""

    def __init__(
        self, setup: UpdateSettings, buffers: deque[SpeechBuffer], emit: Callable[[LiveEvent], Any]
    ) -> None:
        """buffers: new ones are appended; only the last may be open. emit: called with the events
        at the beginning and at the end of each utterance. Raises AudioError for a known speaker.
        """
        self._buffers, self._emit = buffers, emit
        self.setup = self.next_setup = setup
        self.activity = VoiceActivity(setup.live.vad_threshold, setup.live.silence_duration_ms)
        self.pending: Samples = np.empty(0, np.float32)  # not processed yet
        self._padding: Samples = np.empty(0, np.float32)  # the last samples processed
        self._earliest_start = 0  # of the next buffer, in samples since the stream began
        self._utterance: Utterance | None = None  # the current one
        self._number = 0  # of the next utterance
        self._control_calls = 0  # of `commit` and `clear`
        self.history = History(setup.dims.n_mels)
        live = setup.live
        self.speakers = LiveSpeakers(live.known_speakers) if live.diarize else None

    # -- audio, and its end ----------------------------------------------------------------------

    def process(self, block: Samples, probabilities: Samples | None = None) -> None:
        """Put the next samples [n] into buffers where they are speech. probabilities: as in
        `VoiceActivity.process`.
        """
        sound_start = self.activity.position - len(self._padding)
        sound = np.concatenate([self._padding, block])
        position = self.activity.position  # an open buffer has all samples before it
        for change in self.activity.process(block, probabilities):
            if change.speech and not self._is_open():
                position = max(change.at - self.setup.padding, self._earliest_start, sound_start)
                utterance = self._utterance or self._begin_utterance(position)
                self._buffers.append(SpeechBuffer(utterance, position, change.at))
            elif not change.speech and self.next_setup.live.turns:
                audio = self._buffers[-1].audio
                audio.append(sound[position - sound_start : change.at - sound_start])
                position = change.at
                self._end_utterance()
        if self._is_open():
            audio = self._buffers[-1].audio
            audio.append(sound[position - sound_start :])
            audio.speech_end = self.activity.speech_end
            if not self.activity.speaking and audio.mel.frames >= self.setup.max_frames:
                self._close()  # without turns, silence does not fill the window
        self._padding = sound[len(sound) - min(self.setup.padding, len(sound)) :].copy()

    def take(self, size: int) -> Samples:
        """Remove the next pending samples [size]."""
        block, rest = self.pending[:size], self.pending[size:]
        # a short rest does not keep the memory of a long piece
        self.pending = rest.copy() if len(rest) < size else rest
        return block

    def process_pending(self) -> None:
        """Process the pending samples, which are less than a block."""
        if len(self.pending):
            self.process(self.take(len(self.pending)))

    def commit(self) -> None:
        """`Stream.commit`, once the pending samples are processed."""
        self.activity.speaking = False  # the next frame with speech starts a new segment
        self._end_utterance()
        self._control_calls += 1

    def clear(self) -> None:
        """`Stream.clear`, once the pending samples are processed."""
        self.activity.speaking = False  # the next frame with speech starts a new segment
        if self._utterance is not None:
            for buffer in [p for p in self._buffers if p.utterance is self._utterance]:
                self._buffers.remove(buffer)
                buffer.discard()
            self._end_utterance()
        self._earliest_start = self.activity.position
        self._control_calls += 1

    def change(self, setup: UpdateSettings) -> None:
        """`Stream.change`. If pauses end utterances from now on, one that is here already does."""
        self.next_setup = setup
        if setup.live.turns and not self.activity.speaking:
            self._end_utterance()

    def finish(self) -> None:
        """End the last utterance: no more audio follows."""
        if self._utterance is not None:
            self._end_utterance()

    # -- buffers and utterances ------------------------------------------------------------------

    def _is_open(self) -> bool:
        return bool(self._buffers) and not self._buffers[-1].audio.closed

    def _begin_utterance(self, start: int) -> Utterance:
        seconds = start / SAMPLE_RATE
        self.setup = self.next_setup
        live = self.setup.live
        self.activity.configure(live.vad_threshold, live.silence_duration_ms)
        speakers = self.speakers
        self._utterance = Utterance(self._number, seconds, self.setup, self.history, speakers)
        self._number += 1
        self._emit(SpeechStarted(self._utterance.number, round(seconds, 3), self._control_calls))
        return self._utterance

    def _close(self) -> None:
        """Close the open buffer, at a pause or at the end."""
        audio = self._buffers[-1].audio
        audio.closed = True
        audio.speech_end = min(self.activity.speech_end, audio.end)
        self._earliest_start = audio.end

    def _end_utterance(self) -> None:
        """End the current utterance. Without turns, audio without speech is an utterance too."""
        turns = self.next_setup.live.turns
        if self._utterance is None and (turns or self.activity.position == self._earliest_start):
            return
        utterance = self._utterance or self._begin_utterance(self._earliest_start)
        if self._is_open():
            self._close()
        if not self._buffers or self._buffers[-1].utterance is not utterance:
            position = self.activity.position
            self._buffers.append(SpeechBuffer(utterance, position, position))
            self._close()
        buffer = self._buffers[-1]
        buffer.ends_utterance = True
        self._earliest_start = buffer.audio.end if turns else self.activity.position
        utterance.end = self._earliest_start / SAMPLE_RATE
        self._emit(SpeechStopped(utterance.number, round(utterance.end, 3)))
        self._utterance = None
