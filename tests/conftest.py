"""Fixtures that several test files share."""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import random_state, save_openai, tiny_dims

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def probe_path() -> Path:
    """The trained checkpoint of digit words."""
    path = SHARED / "models" / "digits-probe.pt"
    if not path.exists():
        pytest.skip(f"the trained probe is not at {path}")
    return path


@pytest.fixture(scope="session")
def speech_folder() -> Path:
    """Recordings of single digits, and jfk.flac."""
    path = SHARED / "audio"
    if not path.exists():
        pytest.skip(f"the recordings are not at {path}")
    return path


@pytest.fixture(scope="session")
def random_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random tiny checkpoints in OpenAI's format: "multilingual" and "english"."""
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {}
    for name in ("multilingual", "english"):
        dims = tiny_dims(multilingual=name == "multilingual", width=128, heads=2)
        paths[name] = save_openai(folder / f"{name}.pt", dims, random_state(dims, seed=3))
    return paths


def noise_bursts(seconds: float, seed: int) -> np.ndarray:
    """Float32 [n] at 16 kHz: seeded noise that swells and stops, so that windows differ."""
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    envelope = np.repeat(rng.uniform(0, 0.3, n // 4_000 + 1), 4_000)[:n]
    return (rng.standard_normal(n) * envelope).astype(np.float32)
