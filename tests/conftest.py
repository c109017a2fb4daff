"""Fixtures that several test files share."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Run, RunCLI
from tests.support.paths import SHARED

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; set before torch looks
    # numba, which openai-whisper's words start, sets OpenMP's threads to its own
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"
os.environ["NUMBA_OPT"] = "0"  # compiles whisper's small loops in two thirds of the time


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> RunCLI:
    """Calls the command line with some arguments."""
    return partial(Run, capsys)


@pytest.fixture
def speakers_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if all that tells speakers apart were installed, in a folder with files."""
    monkeypatch.setattr("slimwhisper.speakers.choice.missing", lambda _: [])
    monkeypatch.chdir(tmp_path)
    for name in ("ann.wav", "talk.rttm"):
        (tmp_path / name).write_text("SPEAKER talk 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n")
    (tmp_path / "empty").mkdir()


@pytest.fixture(scope="session")
def digits_path() -> Path:
    """The bundled, trained checkpoint of digit words."""
    from slimwhisper.formats.names import bundled_file

    return bundled_file("digits")


@pytest.fixture(scope="module")
def digits(digits_path: Path) -> Any:
    """The bundled model, once for each file of tests."""
    from slimwhisper.loading import load_model

    return load_model(digits_path, "cpu")


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
    from tests.support.checkpoints import random_state, save_openai, tiny_dims

    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {}
    for name in ("multilingual", "english"):
        dims = tiny_dims(multilingual=name == "multilingual", width=128, heads=2)
        paths[name] = save_openai(folder / f"{name}.pt", dims, random_state(dims, seed=3))
    return paths


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported stays, and is left out of every search for garbage: a fifth of the time."""
    gc.disable()
    if session.config.option.dist == "no":  # else others have torch and the tests
        import torch

        torch.testing._comparison._HAS_DTENSOR = False  # would import a large package
        if not torch.cuda.is_available():  # before anything imports triton
            os.environ["TRITON_INTERPRET"] = "1"
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what ends with the process is looked at once more


@pytest.fixture(scope="module", autouse=True)
def memory_goes_back() -> Iterator[None]:
    """Models are large, and a worker has many files of tests before it."""
    yield
    gc.collect()
    gc.freeze()  # what stays, such as modules, is not looked at again after each file
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
