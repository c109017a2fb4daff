"""OpenAI's weights and real recordings, for slow tests; they say what is missing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import whisper

import slimwhisper
from slimwhisper.commands.convert import convert
from tests.support.paths import SHARED
from tests.support.real_models import real_model

WORDLESS = {"1-100032-A-0", "2-100648-A-43", "empty", "laugh1", "noise1"}
SUFFIXES = {".wav", ".flac", ".mp3", ".mp4", ".aiff"}


@pytest.fixture(scope="session")
def recordings() -> dict[str, np.ndarray]:
    """Name: samples of real speech in seven languages, of 1 to 60 s."""
    folder = SHARED / "speech"
    if not folder.exists():
        pytest.skip(f"the recordings are not at {folder}")
    files = [p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES]
    files = [p for p in files if p.stem not in WORDLESS] + [SHARED / "audio/jfk.flac"]
    return {p.stem: slimwhisper.load_audio(str(p)) for p in files}


@pytest.fixture(scope="session")
def whispers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """openai-whisper's model of the same weights."""
    models: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in models:
            path = tmp_path_factory.mktemp("whisper") / f"{name}.pt"
            made = convert(str(real_model(name)), path).path
            models[name] = whisper.load_model(str(made), device="cpu")
            models[name].set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
        return models[name]

    return load
