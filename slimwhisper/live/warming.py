"""What the first stream would wait for, done beforehand."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np

from slimwhisper.audio.vad import SpeechStream
from slimwhisper.engine.engine import Engine
from slimwhisper.live.passage import Passage
from slimwhisper.live.setup import Setup
from slimwhisper.live.types import LiveOptions
from slimwhisper.live.utterance import Utterance
from slimwhisper.longform.words import compile_warping
from slimwhisper.types import SAMPLE_RATE


def load_parts() -> None:
    """Load the voice activity's network, and compile the time warping, which takes seconds. Raises
    DependencyError without silero-vad.
    """
    SpeechStream()
    compile_warping()


@cache
def compile_beside() -> None:
    """Compile the time warping beside other work, once: it takes seconds, and the first buffer that
    is cut would wait for it.
    """
    threading.Thread(target=compile_warping, name="slimwhisper-words", daemon=True).start()


def warm_up(engine: Engine, options: LiveOptions) -> None:
    """Decode a second of silence, in an idle engine: what a device prepares at its first window."""
    model = engine.model
    known = replace(options, language=options.language or "en")  # no step before it is known
    setup = Setup.of(model.dims, model.vocabulary, known, model.settings)
    passage = Passage(Utterance(0, 0.0, setup, []), 0, 0)
    passage.audio.mel.append(np.zeros(SAMPLE_RATE, np.float32))
    engine.ask([passage.request()])
