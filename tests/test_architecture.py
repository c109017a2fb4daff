"""The picture of the packages is that of the imports, and old import paths still work."""

import subprocess
import sys
from importlib import import_module

import pytest

from tests.support.paths import ROOT


def test_the_picture_is_up_to_date() -> None:
    command = [sys.executable, "docs/architecture_svg.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("audio", "AUDIO_SUFFIXES AudioSource Source as_waveform load_audio load_samples resample"),
        ("checkpoint", "Checkpoint available_models default_download_root load_checkpoint"),
        ("model", "Model"),
        ("engine", "Engine"),
    ],
)
def test_names_that_people_import(module: str, names: str) -> None:
    """From where they were before these modules became packages."""
    package = import_module(f"slimwhisper.{module}")
    for name in names.split():
        assert getattr(package, name) is not None
        assert name in dir(package)
