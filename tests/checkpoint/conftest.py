"""A small random model in both formats."""

from pathlib import Path

import pytest

from tests.support.checkpoints import DIMS, State, random_state, save_hf, save_openai


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
