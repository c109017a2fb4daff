"""Parts of a stream: when text is committed, where a full buffer is cut; spectrogram; activity."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper.audio.mel import Spectrogram, first_window
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.engine.requests import Alignment
from slimwhisper.live import policy, segmenter
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.policy import BufferCut, TextPiece, choose_cut, committable
from slimwhisper.live.segmenter import BLOCK, SpeechChange, VoiceActivity
from slimwhisper.voice_activity import SpeechStream, speech_regions
from tests.support.spoken import LONG, SAMPLES
from tests.support.tones import vocabulary


def attend(attended: list[int], positions: int = 500, before: str = "a bcd e") -> int:
    words = [TextPiece(" a", (1,)), TextPiece(" bcd", (2, 3)), TextPiece(" e", (4,))]
    previous = [TextPiece(f" {word}", (1,)) for word in before.split()]
    return committable(words, previous, attended, positions)


def test_words_that_attend_to_the_end_or_go_back_wait() -> None:
    last, rewind = 500 - policy.KNOWN_MARGIN, policy.REWIND_FRAMES
    for attended, count in (
        *(([10, 20, 30, 40], 3), ([10, 20, 30, last], 2), ([10, 20, 30, last - 1], 3)),
        *(([10, 20, last, 40], 1), ([499, 20, 30, 40], 0)),  # a part of the word does
        *(([100, 200, 210, 200 - rewind], 2), ([100, 200, 210, 211 - rewind], 3)),
    ):
        assert attend(attended) == count, attended


def test_new_words_wait_longer() -> None:
    """Those that the update before did not have at their places, but for case and punctuation."""
    new = 500 - policy.NEW_MARGIN
    for before, count in (("a bcd e", 3), ("A, Bcd. ... e!", 3), ("a bce e", 1), ("bcd e", 1)):
        assert attend([10, new, new, new], before=before) == count, before
        assert attend([10, new - 2, new - 1, new - 1], before=before) == 3, "a name, at last"


TOKENIZER = vocabulary().tokenizer("en")
BEFORE = 2


def buffer(quiet: Sequence[float]) -> LiveMel:
    """Ten seconds of noise, quieter for 0.1 s around these times."""
    rng = np.random.default_rng(0)
    sound = (0.1 * rng.standard_normal(160_000)).astype(np.float32)
    for rank, at in enumerate(quiet):
        sound[round((at - 0.05) * 16_000) : round((at + 0.05) * 16_000)] *= 0.3 / (rank + 1)
    mel = LiveMel(80, 1500)
    mel.append(sound)
    return mel


def aligned(words: str, starts: Sequence[float]) -> Alignment:
    """Words of one token, each of which attends from its start to the next one's."""
    tokens = TOKENIZER.encode(f" {words}")
    assert len(tokens) == len(starts)
    scores = torch.zeros(1, BEFORE + len(tokens) + 1, 500)
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], 10.0], strict=True)):
        scores[0, BEFORE - 1 + number, round(start * 50) : round(stop * 50)] = 9
    scores[0, BEFORE - 1 + len(tokens), 490:] = 9
    return Alignment(tuple(tokens), BEFORE, scores, (0.9,) * len(tokens))


def cut(words: str, starts: Sequence[float], committed: int, quiet: Sequence[float]) -> BufferCut:
    return choose_cut(aligned(words, starts), committed, buffer(quiet), 1000, TOKENIZER)


WORDS, STARTS = "one two three four five six", (0.0, 2.0, 4.0, 5.5, 7.0, 8.5)


@pytest.mark.parametrize(
    ("words", "committed", "quiet", "tokens", "at"),
    [
        (WORDS, 4, (4.0, 5.5), 3, 5.5),  # the quieter of two places
        (WORDS, 4, (5.5, 4.0), 2, 4.0),
        (WORDS, 4, (2.0, 4.0, 8.5), 2, 4.0),  # not in the first quarter, not where it is open
        ("one two three. Five six", 4, (7.0, 4.0), 4, 7.0),  # behind a sentence all the same
        (WORDS, 0, (4.0, 7.0), 4, 7.0),  # nothing is committed: so now something is
    ],
)
def test_where(words: str, committed: int, quiet: Sequence[float], tokens: int, at: float) -> None:
    chosen = cut(words, STARTS, committed, quiet)
    assert chosen.tokens == tokens and abs(chosen.frames / 100 - at) < 0.15


def test_neither_a_loop_nor_nothing_is_committed() -> None:
    """A loop is words that have no length."""
    assert cut(WORDS, (0.0, 3.0, 6.0, 6.0, 6.0, 8.0), 0, (3.0,)).tokens <= 3
    mel = buffer(())
    assert choose_cut(None, 0, mel, 1000, TOKENIZER) == BufferCut(0, mel.complete)


# The spectrogram of a growing buffer: the whole recording's as the reference


RNG = np.random.default_rng(0)
NOISE = (0.1 * RNG.standard_normal(9 * 16_000)).astype(np.float32)


def assert_close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-4, rtol=0)


@pytest.mark.parametrize("count", [1, 159, 160, 200, 201, 401, 48_000])
def test_it_is_that_of_the_samples_at_once(count: int) -> None:
    mel = LiveMel(80, 1000)
    at = 0
    while at < count:
        step = int(RNG.integers(0, 7_000))
        mel.append(NOISE[at : min(at + step, count)])
        at += step
        if at % 2:  # looking changes nothing
            mel.window(mel.frames)
    assert mel.frames == count // 160
    assert_close(mel.window(mel.frames), first_window(NOISE[:count], 80, 1000))
    silence = LiveMel(80, 300)
    silence.append(np.zeros(count, np.float32))
    assert_close(silence.window(silence.frames), first_window(np.zeros(count, np.float32), 80, 300))


def test_a_part_of_the_buffer() -> None:
    mel = LiveMel(80, 500)
    mel.append(NOISE)
    window, whole = mel.window(200), Spectrogram(ArraySamples(NOISE), 80).window(0, 200)
    assert_close(window[:, :200], whole[:, :200])
    floor = window[:, :200].max() - 2  # 8 decades, of which 4 are 1
    assert_close(window[:, 200:], floor.expand(80, 300))


def test_after_a_cut_it_goes_on_as_if_there_were_none() -> None:
    mel = LiveMel(80, 500)
    mel.append(NOISE[:70_000])
    mel.window(300)
    mel.cut(211)
    mel.append(NOISE[70_000:90_000])
    mel.cut(100)
    frames = 90_000 // 160 - 311
    assert mel.frames == frames
    # the loudest bin is the same here, so that the floor is
    expected = Spectrogram(ArraySamples(NOISE[:90_000]), 80).window(311, frames + 3)
    assert_close(mel.window(frames)[:, : frames + 3], expected[:, : frames + 3])


def test_it_keeps_frames_not_samples() -> None:
    mel = LiveMel(80, 500)
    for _ in range(50):
        mel.append(NOISE[:16_000])
        mel.cut(mel.complete)
    assert mel._logs.shape[1] == 0 and len(mel._samples) < 400 and not mel._pending


# Voice activity while speech goes on: the offline network and a plain hysteresis as references


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
