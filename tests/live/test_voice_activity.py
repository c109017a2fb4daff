"""Voice activity while speech goes on: the offline network and a plain hysteresis as references."""

import numpy as np
import pytest

import slimwhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.live import segmenter
from slimwhisper.live.segmenter import BLOCK, SpeechChange, VoiceActivity
from slimwhisper.voice_activity import SpeechStream, speech_regions
from tests.support.spoken import LONG, SAMPLES


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return slimwhisper.load_audio(SAMPLES / LONG)[: 20 * 16_000]


def test_streams_are_processed_in_one_batch(speech: np.ndarray) -> None:
    """One starts later than the other; each hears what it hears alone."""
    block = speech[:BLOCK]
    alone, first, second = SpeechStream(), SpeechStream(), SpeechStream()
    expected = [alone.probabilities(speech[i * BLOCK :][:BLOCK]) for i in range(4)]
    np.testing.assert_allclose(first.probabilities(block), expected[0], atol=1e-6)
    for i in range(3):
        blocks = np.stack([speech[(i + 1) * BLOCK :][:BLOCK], speech[i * BLOCK :][:BLOCK]])
        probabilities = SpeechStream.next_batch([first, second], blocks)
        np.testing.assert_allclose(probabilities, [expected[i + 1], expected[i]], atol=1e-5)


def changes_of(samples: np.ndarray, threshold: float, silence_ms: int) -> list[SpeechChange]:
    activity = VoiceActivity(threshold, silence_ms)
    blocks = np.split(samples, range(BLOCK, len(samples), BLOCK))
    return [change for block in blocks for change in activity.process(block)]


def test_speech_begins_and_ends_where_it_does_offline(speech: np.ndarray) -> None:
    whole = ArraySamples(speech)
    expected = speech_regions(whole, min_silence_duration_ms=500, speech_pad_ms=0)
    changes = changes_of(speech, 0.5, 500)
    assert len(expected) > 3
    assert [c.at for c in changes if c.speech] == [start for start, _ in expected]
    ends = [c.at - 8_000 for c in changes if not c.speech]
    # silero counts from the first quiet frame, up to a frame after the last loud one
    np.testing.assert_allclose(ends, [stop for _, stop in expected][: len(ends)], atol=1024)


def test_hysteresis(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [0.1, 0.5, 0.36, 0.34, 0.2, 0.4, 0.1, 0.1, 0.1, 0.49, 0.6]

    class Scripted:
        def probabilities(self, block: np.ndarray) -> np.ndarray:
            return np.array([script.pop(0) for _ in range(0, len(block), 512)])

    monkeypatch.setattr(segmenter, "SpeechStream", Scripted)
    changes = changes_of(np.zeros(len(script) * 512, np.float32), 0.5, 96)
    assert [(c.speech, c.at / 512) for c in changes] == [(True, 1), (False, 9), (True, 10)]
