"""The back end `pyannote`, with a stand-in that has the interface of pyannote.audio 3 and 4."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import DependencyError
from slimwhisper.speakers import pyannote
from slimwhisper.speakers.turns import Turn

TRACKS = [(1.0, 2.0, "SPEAKER_01"), (0.25, 0.75, "SPEAKER_00"), (2.5, 3.0, "SPEAKER_01")]


class Annotation:
    """pyannote.core's, as far as we use it."""

    def itertracks(self, yield_label: bool = False) -> Iterator[tuple[Any, ...]]:
        for i, (start, end, label) in enumerate(TRACKS):
            segment = SimpleNamespace(start=np.float64(start), end=np.float64(end))
            yield (segment, i, label) if yield_label else (segment, i)


class Pipeline:
    """pyannote.audio's: refuses, as a gated repository does, unless it is accepted."""

    accepted: list[str]
    version: int
    calls: list[tuple[Any, Any]]

    @classmethod
    def from_pretrained(cls, checkpoint: str) -> "Pipeline | None":
        if checkpoint in cls.accepted:
            return cls()
        if cls.version == 3:
            return None  # after it has printed why
        raise OSError("403 Client Error: access to this model is restricted\nsee its page")

    def to(self, device: torch.device) -> "Pipeline":
        return self

    def __call__(self, file: dict[str, Any], num_speakers: int | None = None) -> Any:
        assert file["sample_rate"] == 16_000
        assert file["waveform"].dtype == torch.float32
        assert file["waveform"].ndim == 2
        self.calls.append((tuple(file["waveform"].shape), num_speakers))
        if self.version == 3:
            return Annotation()
        return SimpleNamespace(speaker_diarization=None, exclusive_speaker_diarization=Annotation())


@pytest.fixture(params=[3, 4])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Pipeline]:
    Pipeline.version, Pipeline.calls = request.param, []
    Pipeline.accepted = [pyannote.PIPELINES[request.param]]
    audio, parent = ModuleType("pyannote.audio"), ModuleType("pyannote")
    audio.Pipeline = Pipeline  # type: ignore[attr-defined]
    audio.__version__ = f"{request.param}.1.1"  # type: ignore[attr-defined]
    parent.audio = audio  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyannote", parent)
    monkeypatch.setitem(sys.modules, "pyannote.audio", audio)
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda backend: [])
    pyannote.load_pipeline.cache_clear()
    return Pipeline


def test_turns(package: type[Pipeline]) -> None:
    samples = ArraySamples(np.zeros(48_000, np.float32))
    found = pyannote.find_turns(samples, 2)
    assert found == [
        Turn(0.25, 0.75, "SPEAKER_00"),
        Turn(1.0, 2.0, "SPEAKER_01"),
        Turn(2.5, 3.0, "SPEAKER_01"),
    ]
    pyannote.find_turns(samples, None)
    assert package.calls == [((1, 48_000), 2), ((1, 48_000), None)]
    assert pyannote.find_turns(ArraySamples(np.zeros(0, np.float32)), None) == []


def test_refused(package: type[Pipeline]) -> None:
    package.accepted = []
    with pytest.raises(DependencyError, match=r"accept its conditions at https://hf.*HF_TOKEN"):
        pyannote.load_pipeline()


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda backend: ["pyannote.audio"])
    pyannote.load_pipeline.cache_clear()
    with pytest.raises(DependencyError, match=r"^diarize='pyannote' needs pyannote.audio: pip"):
        pyannote.load_pipeline()
