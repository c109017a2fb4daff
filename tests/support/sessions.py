"""One file's state machine on a spectrogram that is not one, and answers to feed it."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.engine.requests import Decoded, Window
from slimwhisper.longform.passes import Passes
from slimwhisper.longform.recording import Session
from slimwhisper.options import Options
from slimwhisper.recordings.passes import flag
from slimwhisper.tokens.vocabulary import get_tokenizer
from slimwhisper.types import SAMPLE_RATE, Dims
from slimwhisper.voice_activity import FRAME, SpeechFrames
from slimwhisper.word_times.options import add_words
from tests.support.checkpoints import tiny_dims

DIMS = tiny_dims(multilingual=False)
TOKENIZER = get_tokenizer(DIMS)
BEGIN = TOKENIZER.timestamp_begin
HELLO, WORLD = TOKENIZER.encode(" hello"), TOKENIZER.encode(" world")


def stamp(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


class Frames(Spectrogram):
    """Stands in for a spectrogram: frames carry their own number, so that windows show where they
    lie. Past the recording's end all is -1, and past a window's zero.
    """

    def __init__(self, seconds: float, audio_window: str | None) -> None:
        self.frames, self.audio_window = round(seconds * 100), audio_window

    def window(self, start: int, frames: int) -> Tensor:
        mel = torch.zeros(80, 3000)
        mel[:, :frames] = torch.arange(start + 1, start + frames + 1)
        mel[:, :frames][mel[:, :frames] > self.frames] = -1
        return mel


class Heard(SpeechFrames):
    """Voice in these spans, in seconds."""

    def __init__(self, seconds: float, *spans: tuple[float, float]) -> None:
        times = np.arange(round(seconds * SAMPLE_RATE) // FRAME) * FRAME / SAMPLE_RATE
        self.frames = np.zeros(len(times), dtype=np.bool_)
        for start, stop in spans:
            self.frames |= (start <= times) & (times < stop)


def session(
    seconds: float, dims: Dims = DIMS, voice: SpeechFrames | None = None, **options: object
) -> Session:
    chosen = Options(**options)  # type: ignore[arg-type]
    passes = Passes(windows=[partial(flag, voice=voice)], voice=voice)
    add_words(passes, ArraySamples(np.zeros(0, np.float32)), chosen, "")
    return Session(Frames(seconds, chosen.audio_window), dims, chosen, passes=passes)


def answer(*tokens: int, **fields: float) -> Decoded:
    usual = {"avg_logprob": -0.5, "no_speech_prob": 0.1, "temperature": 0.0}
    return Decoded(tokens, **usual | fields)  # type: ignore[arg-type]


def request(state: Session) -> Window:
    """The window that is asked for."""
    window = state.request
    assert isinstance(window, Window)
    return window
