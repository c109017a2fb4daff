"""Voice activity while speech goes on: the offline network and a plain hysteresis as references."""

import numpy as np
import pytest

import slimwhisper
from slimwhisper.audio.vad import SpeechStream, speech_regions
from slimwhisper.live import activity
from slimwhisper.live.activity import BLOCK, Activity, Change
from tests.support.spoken import LONG, SAMPLES

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return slimwhisper.load_audio(SAMPLES / LONG)[: 20 * 16_000]


def test_streams_are_judged_together(speech: np.ndarray) -> None:
    """One starts later than the other; each hears what it hears alone."""
    block = speech[:BLOCK]
    alone, first, second = SpeechStream(), SpeechStream(), SpeechStream()
    expected = [alone.probabilities(speech[i * BLOCK :][:BLOCK]) for i in range(4)]
    np.testing.assert_allclose(first.probabilities(block), expected[0], atol=1e-6)
    for i in range(3):
        blocks = np.stack([speech[(i + 1) * BLOCK :][:BLOCK], speech[i * BLOCK :][:BLOCK]])
        found = SpeechStream.together([first, second], blocks)
        np.testing.assert_allclose(found, [expected[i + 1], expected[i]], atol=1e-5)


def changes_of(samples: np.ndarray, threshold: float, silence_ms: int) -> list[Change]:
    judge = Activity(threshold, silence_ms)
    return [
        change
        for start in range(0, len(samples), BLOCK)
        for change in judge.hear(samples[start : start + BLOCK])
    ]


def test_speech_begins_and_ends_where_it_does_offline(speech: np.ndarray) -> None:
    class Whole:
        def __len__(self) -> int:
            return len(speech)

        def read(self, start: int, stop: int) -> np.ndarray:
            return speech[start:stop]

    expected = speech_regions(Whole(), min_silence_ms=500, pad_ms=0)
    found = changes_of(speech, 0.5, 500)
    assert len(expected) > 3
    assert [c.at for c in found if c.speech] == [start for start, _ in expected]
    ends = [c.at - 8_000 for c in found if not c.speech]
    # silero counts from the first quiet frame, up to a frame after the last loud one
    np.testing.assert_allclose(ends, [stop for _, stop in expected][: len(ends)], atol=1024)


def test_hysteresis(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [0.1, 0.5, 0.36, 0.34, 0.2, 0.4, 0.1, 0.1, 0.1, 0.49, 0.6]

    class Scripted:
        def probabilities(self, block: np.ndarray) -> np.ndarray:
            count = -(-len(block) // 512)
            taken, given[:count] = given[:count], []
            return np.array(taken)

    monkeypatch.setattr(activity, "SpeechStream", Scripted)
    found = changes_of(np.zeros(len(given) * 512, np.float32), 0.5, 96)
    assert found == [Change(True, 512), Change(False, 9 * 512), Change(True, 10 * 512)]
