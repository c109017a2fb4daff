"""Prepares what the first stream would otherwise wait for."""

from dataclasses import replace

import numpy as np

from slimwhisper.engine.requests import Window
from slimwhisper.live.setup import UpdateSettings
from slimwhisper.live.speech_buffer import SpeechBuffer
from slimwhisper.live.types import LiveOptions
from slimwhisper.live.utterance import StreamContext, Utterance
from slimwhisper.model.model import Model
from slimwhisper.types import SAMPLE_RATE


def window_of_silence(model: Model, options: LiveOptions) -> Window:
    """A second of silence: a device prepares itself at its first window."""
    options = replace(options, language=options.language or "en")  # skips language detection
    setup = UpdateSettings.of(model.dims, model.vocabulary, options, model.settings)
    buffer = SpeechBuffer(Utterance(0, 0.0, setup, StreamContext()), 0, 0)
    buffer.audio.mel.append(np.zeros(SAMPLE_RATE, np.float32))
    return buffer.request()
