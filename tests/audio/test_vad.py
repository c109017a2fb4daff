"""Speech regions: the package's own as the reference, in blocks of any size, threads untouched."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper import voice_activity as vad
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.cores import one_thread, usual_threads
from slimwhisper.errors import DependencyError
from slimwhisper.voice_activity import FRAME, SpeechFrames, speech_regions
from tests.support.command import python
from tests.support.sessions import Heard
from tests.support.spoken import LONG, SAMPLES

# several regions in a recording of 11 s
CLOSE = {"min_silence_duration_ms": 100, "speech_pad_ms": 30}


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    audio = slimwhisper.load_audio(SAMPLES / LONG)[: 11 * 16_000]
    audio.flags.writeable = False
    return audio


@pytest.mark.filterwarnings("ignore:`torch.jit.load`")
def test_speech_is_found_where_the_package_finds_it(speech: np.ndarray) -> None:
    silence = np.zeros(3 * 16_000, np.float32)
    array = np.concatenate([silence, speech, silence, speech[:40_000], silence])
    samples = torch.from_numpy(np.pad(array, (0, -len(array) % FRAME)))
    with one_thread(torch.get_num_threads()), torch.no_grad():  # the package changes it
        from silero_vad import get_speech_timestamps, load_silero_vad

        network = load_silero_vad()
        frames = [network(frame, 16_000) for frame in samples.split(FRAME)]

    def package_regions(**arguments: float) -> list[tuple[int, int]]:
        # the network has run once for all
        found = get_speech_timestamps(samples[: len(array)], Mock(side_effect=frames), **arguments)
        return [(region["start"], region["end"]) for region in found]

    expected = package_regions(
        min_speech_duration_ms=0, min_silence_duration_ms=2000, speech_pad_ms=400
    )
    assert len(expected) == 2
    assert speech_regions(ArraySamples(array)) == expected
    usual = package_regions(min_speech_duration_ms=0)
    assert len(usual) > 4
    assert speech_regions(ArraySamples(array), **CLOSE) == usual
    for options in (
        {"threshold": 0.9, "min_speech_duration_ms": 1500},
        {"max_speech_duration_s": 1.0},
        {"threshold": 0.9, "neg_threshold": 0.89},
    ):
        expected = package_regions(**{"min_speech_duration_ms": 0, **options})
        assert speech_regions(ArraySamples(array), **CLOSE, **options) == expected != usual


def test_blocks_of_any_size_give_the_same_regions(speech: np.ndarray, monkeypatch: Any) -> None:
    """No more than a block is read at a time."""
    expected = speech_regions(ArraySamples(speech), **CLOSE)
    for frames in (3, 343, 344):  # 11 s are 343.75 frames
        recording = Mock(wraps=ArraySamples(speech), __len__=lambda _: len(speech))
        monkeypatch.setattr(vad, "BLOCK_FRAMES", frames)
        assert speech_regions(recording, **CLOSE) == expected
        reads = [call.args for call in recording.read.call_args_list]
        assert reads and max(stop - start for start, stop in reads) <= frames * FRAME


def test_recordings_of_a_frame_or_less(speech: np.ndarray) -> None:
    for length in (0, 1, 511, 512, 513):
        assert speech_regions(ArraySamples(np.zeros(length, np.float32))) == []
        loud = speech[8_000 : 8_000 + length].copy()
        whole = [(0, length)] if length else []
        assert speech_regions(ArraySamples(loud), threshold=-1) == whole


def test_recordings_at_the_same_time_do_not_mix(speech: np.ndarray) -> None:
    parts = [speech[:80_000], speech[50_000:], speech[90_000:]]
    expected = [speech_regions(ArraySamples(part), **CLOSE) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda part: speech_regions(ArraySamples(part), **CLOSE), parts * 2)
        assert list(found) == expected * 2


def test_quiet_speech_counts_for_frames(speech: np.ndarray) -> None:
    quiet = np.pad(0.003 * speech, (10 * 16_000, 0))
    assert speech_regions(ArraySamples(quiet)) == []
    voice = SpeechFrames(ArraySamples(quiet))
    found = voice.frames
    assert found.shape == (-(-len(quiet) // FRAME),)
    assert not found[: 9 * 16_000 // FRAME].any() and found[10 * 16_000 // FRAME :].mean() > 0.5
    noise = 0.1 * np.random.default_rng(0).standard_normal(80_000).astype(np.float32)
    for silent in (noise, 0 * noise, noise[:0]):
        assert not SpeechFrames(ArraySamples(silent)).frames.any()
    assert voice.heard(800, 1100) and not voice.heard(0, 900)
    assert voice.seconds(0, 900) == 0 < voice.seconds(1000, 2000)


def test_faint_voice_is_short_and_rare() -> None:
    """A short word alone is not faint, nor are many; cries that are scattered are."""
    for spans, faint in (([(5, 5.28)], True), ([(5, 5.4)], False), ([(0, 0.25)], True)):
        assert Heard(30, *spans).is_faint(0, 3000) is faint
    assert Heard(30, *((t, t + 0.2) for t in range(0, 30, 10))).is_faint(0, 3000)
    assert not Heard(30, *((t, t + 0.2) for t in range(30))).is_faint(0, 3000)
    assert not Heard(0.4, (0, 0.26)).is_faint(0, 40)  # most of what there is


# In a fresh process: silero-vad sets the threads when it is imported, once.
THREADS = """
import threading, torch, numpy as np
import slimwhisper.voice_activity as vad

note = lambda: counts.append(torch.get_num_threads())

def note_twice():
    note()
    later = threading.Thread(target=note); later.start(); later.join()

class Silence:
    def __len__(self): return 20_000
    def read(self, start, stop):
        note_twice()
        return np.zeros(stop - start, np.float32)

usual = vad.VadNetwork.next
def watched(self, state, block):
    inside.append(torch.get_num_threads())
    return usual(self, state, block)
vad.VadNetwork.next = watched

for mine in (3, 2):  # the second time the package is there already
    torch.set_num_threads(mine)
    counts, inside = [], []
    vad.speech_regions(Silence())
    note_twice()
    assert counts == [mine] * 4, counts
    assert inside == [1], inside
"""


def test_threads_keep_their_number() -> None:
    done = python("-c", THREADS)
    assert done.returncode == 0, done.stderr


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    vad._shared_network.cache_clear()
    monkeypatch.setitem(sys.modules, "silero_vad", None)
    threads = torch.get_num_threads()
    with pytest.raises(DependencyError, match="pip install silero-vad"):
        speech_regions(ArraySamples(np.zeros(100, np.float32)))
    assert usual_threads() == torch.get_num_threads() == threads
