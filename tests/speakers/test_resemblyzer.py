"""The real encoder, as its package computes it, and on people. Needs the extra `diarize`."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.speakers.embedding import find_turns
from slimwhisper.speakers.encoder import WINDOW, _mel_bands, load_encoder

needs_package = pytest.mark.skipif(
    find_spec("resemblyzer") is None or find_spec("sklearn") is None,
    reason="needs the extra `diarize`",
)


def test_the_bands_are_whispers_for_its_number_of_them() -> None:
    """openai-whisper brings librosa's filters of 80 bands, for the same rate and length."""
    import whisper.audio

    theirs = whisper.audio.mel_filters("cpu", 80)  # [80, 201]
    torch.testing.assert_close(_mel_bands(80).T, theirs, atol=1e-7, rtol=1e-4)


@needs_package
def test_embeddings_are_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    librosa = pytest.importorskip("librosa")
    windows = np.random.default_rng(0).standard_normal((3, WINDOW)).astype(np.float32) * 0.05
    mels = [
        librosa.feature.melspectrogram(y=w, sr=16_000, n_fft=400, hop_length=160, n_mels=40).T[:160]
        for w in windows
    ]
    morphology = ModuleType("scipy.ndimage.morphology")
    morphology.binary_dilation = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "webrtcvad", ModuleType("webrtcvad"))  # may not import
    monkeypatch.setitem(sys.modules, "scipy.ndimage.morphology", morphology)  # deprecated
    from resemblyzer import VoiceEncoder

    with torch.no_grad():
        expected = VoiceEncoder("cpu", verbose=False)(torch.from_numpy(np.stack(mels)))
    result = load_encoder().embed(windows)
    np.testing.assert_allclose(result, expected.numpy(), atol=2e-5)
    assert load_encoder() is load_encoder()
    short = windows[0][:6_000]
    beside, alone = load_encoder().embed([windows[1], short]), load_encoder().embed([short])
    np.testing.assert_allclose(beside[1], alone[0], atol=2e-5)


@needs_package
@pytest.mark.slow
def test_two_people(speech_folder: Path) -> None:
    def phrase(name: str, first: int) -> np.ndarray:
        paths = [speech_folder / "fsdd" / f"{(first + i) % 10}_{name}_{i}.wav" for i in range(6)]
        gap = np.zeros(1_600, np.float32)
        return np.concatenate([part for p in paths for part in (load_audio(p), gap)])

    pause = np.zeros(12_000, np.float32)
    names = ["jackson", "nicolas", "jackson", "nicolas"]
    phrases = [phrase(name, 3 * i) for i, name in enumerate(names)]
    audio = np.concatenate([part for p in phrases for part in (pause, p)])
    turns = find_turns(ArraySamples(audio), None)
    assert [t.speaker for t in turns] == ["SPEAKER_00", "SPEAKER_01"] * 2
