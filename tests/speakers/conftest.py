"""Voices that are told apart without networks."""

from pathlib import Path

import pytest
import soundfile

from tests.support.voices import made_up_voices, sound

__all__ = ["made_up_voices", "references"]


@pytest.fixture
def references(tmp_path: Path) -> dict[str, str]:
    """Recordings of the voices 2 and 7, of which the second does not speak."""
    paths = {}
    for name, voice in (("Zoë", 2), ("Absent", 6)):
        paths[name] = str(tmp_path / f"{name}.wav")
        soundfile.write(paths[name], sound([(voice, 0.5, 4.0)], 5.0), 16_000)
    return paths
