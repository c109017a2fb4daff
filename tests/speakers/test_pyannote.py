"""The back end `pyannote`, with a stand-in that has the interface of pyannote.audio 3 and 4."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import DependencyError
from slimwhisper.speakers import pyannote
from slimwhisper.speakers.turns import Turn

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
