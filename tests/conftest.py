"""Fixtures that several test files share."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():  # before anything imports triton
    os.environ["TRITON_INTERPRET"] = "1"

from checkpoints import random_state, save_openai, tiny_dims

from slimwhisper.bundled import bundled_file

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def digits_path() -> Path:
    """The bundled, trained checkpoint of digit words."""
    return bundled_file("digits")


@pytest.fixture(scope="session")
def speech_folder() -> Path:
    """Recordings of digits by people, and jfk.flac."""
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


@pytest.fixture(scope="session")
def numba() -> None:
    """Starting up, for whisper's words, it sets OpenMP's threads to all cores: take that back.

    Where the cores are busy, two threads that wait for each other are ten times slower than one.
    """
    from whisper.timing import dtw

    threads = torch.get_num_threads()
    dtw(torch.zeros(2, 2))
    torch.set_num_threads(threads)


def noise_bursts(seconds: float, seed: int) -> np.ndarray:
    """Float32 [n] at 16 kHz: seeded noise that swells and stops, so that windows differ."""
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    envelope = np.repeat(rng.uniform(0, 0.3, n // 4_000 + 1), 4_000)[:n]
    return (rng.standard_normal(n) * envelope).astype(np.float32)
