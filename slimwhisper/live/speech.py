"""What the audio of a stream says: where passages and utterances begin and end."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.live.activity import Activity
from slimwhisper.live.passage import Passage
from slimwhisper.live.setup import Setup
from slimwhisper.live.types import LiveEvent, SpeechStarted, SpeechStopped
from slimwhisper.live.utterance import Utterance
from slimwhisper.types import SAMPLE_RATE

Samples = NDArray[np.float32]  # [n], at 16 kHz


class Speech:
    """Puts the audio with speech into passages, which belong to utterances."""

    def __init__(
        self, setup: Setup, passages: deque[Passage], tell: Callable[[LiveEvent], Any]
    ) -> None:
        """passages: where new ones are put; only the last may be open. tell: is given the events
        at the beginning and at the end of each utterance.
        """
        self._passages, self._tell = passages, tell
        self.setup = self.next_setup = setup
        self.activity = Activity(setup.live.vad_threshold, setup.live.silence_duration_ms)
        self.pending: Samples = np.empty(0, np.float32)  # less than a block
        self._recent: Samples = np.empty(0, np.float32)  # the last ones judged
        self._begins = 0  # samples since the stream began: no later passage begins earlier
        self._utterance: Utterance | None = None  # that goes on
        self._number = 0  # of the next utterance
        self._calls = 0  # of `commit` and `clear`
        self._history: list[int] = []  # tokens of what was committed before the last cut

    # -- audio, and its end ----------------------------------------------------------------------

    def hear(self, block: Samples, judged: Samples | None = None) -> None:
        """Judge the next samples [n], and put those with speech into passages. judged: as in
        `Activity.hear`.
        """
        begin = self.activity.heard - len(self._recent)
        sound = np.concatenate([self._recent, block])
        at = self.activity.heard  # an open passage has all samples before it
        for change in self.activity.hear(block, judged):
            if change.speech:
                at = max(change.at - self.setup.padding, self._begins, begin)
                self._open(at, change.at)
            else:
                self._passages[-1].audio.mel.append(sound[at - begin : change.at - begin])
                at = change.at
                self._close()
                if self.setup.live.turns:
                    self._end_utterance()
        if self._is_open():
            audio = self._passages[-1].audio
            audio.mel.append(sound[at - begin :])
            audio.spoken = self.activity.spoken
        self._recent = sound[len(sound) - min(self.setup.padding, len(sound)) :].copy()

    def hear_rest(self) -> None:
        """Hear what is less than a block."""
        block, self.pending = self.pending, self.pending[:0]
        if len(block):
            self.hear(block)

    def commit(self) -> None:
        """As `Stream.commit`, when all is heard."""
        self.activity.stop()
        self._end_utterance()
        self._calls += 1

    def clear(self) -> None:
        """As `Stream.clear`, when all is heard."""
        self.activity.stop()
        if self._utterance is not None:
            forgotten = [p for p in self._passages if p.utterance is self._utterance]
            for passage in forgotten:
                self._passages.remove(passage)
                passage.forget()
            self._end_utterance()
        self._begins = self.activity.heard
        self._calls += 1

    def finish(self) -> None:
        """No more audio comes: the last utterance ends."""
        if self._utterance is not None:
            self._end_utterance()

    # -- passages and utterances -----------------------------------------------------------------

    def _is_open(self) -> bool:
        return bool(self._passages) and not self._passages[-1].audio.closed

    def _open(self, start: int, speech: int) -> None:
        """A passage, and an utterance if none goes on, begin."""
        utterance = self._utterance or self._begin_utterance(start)
        self._passages.append(Passage(utterance, start, speech))

    def _begin_utterance(self, start: int) -> Utterance:
        seconds = start / SAMPLE_RATE
        self.setup = self.next_setup
        live = self.setup.live
        self.activity.change(live.vad_threshold, live.silence_duration_ms)
        self._utterance = Utterance(self._number, seconds, self.setup, self._history)
        self._number += 1
        number = self._utterance.number
        self._tell(SpeechStarted(number, round(seconds, 3), self._calls))
        return self._utterance

    def _close(self) -> None:
        """A pause, or the end: no more audio for the open passage."""
        audio = self._passages[-1].audio
        audio.closed = True
        audio.spoken = min(self.activity.spoken, audio.end)
        self._begins = audio.end

    def _end_utterance(self) -> None:
        """The utterance that goes on ends; without turns, else one without speech."""
        turns = self.setup.live.turns
        if self._utterance is None and (turns or self.activity.heard == self._begins):
            return
        utterance = self._utterance or self._begin_utterance(self._begins)
        if self._is_open():
            self._close()
        if not self._passages or self._passages[-1].utterance is not utterance:
            here = self.activity.heard
            self._passages.append(Passage(utterance, here, here))
            self._close()
        last = self._passages[-1]
        last.ends_utterance = True
        self._begins = last.audio.end if turns else self.activity.heard
        utterance.end = self._begins / SAMPLE_RATE
        self._tell(SpeechStopped(utterance.number, round(utterance.end, 3)))
        self._utterance = None
