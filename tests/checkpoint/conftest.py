"""A small random model in both formats."""

from pathlib import Path

import pytest

from tests.support.checkpoints import DIMS, State, random_state, save_hf, save_openai
from tests.support.damage import save_sound


@pytest.fixture(scope="session")
def state() -> State:
    return random_state(DIMS, seed=1)


@pytest.fixture(scope="session")
def openai_bytes(tmp_path_factory: pytest.TempPathFactory, state: State) -> bytes:
    return save_openai(tmp_path_factory.mktemp("openai") / "x.pt", DIMS, state).read_bytes()


@pytest.fixture
def folder(tmp_path: Path, state: State) -> Path:
    """A Hugging Face folder."""
    return save_hf(tmp_path / "model", DIMS, state)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and adapters of every kind that load, each in a folder of its own."""
    return save_sound(tmp_path_factory.mktemp("sound"))
