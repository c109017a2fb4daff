"""Fixtures of jobs: a model without weights, a tree of recordings, a store in this process."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.command import RunCLI
from tests.support.fake_model import FakeModel, fake_model
from tests.support.memory_store import store

__all__ = ["fake_model", "run", "store", "tree"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three good recordings and a bad one."""
    monkeypatch.chdir(tmp_path)
    said = {"a.wav": "one", "b/a.wav": "two", "b/a.mp3": "three", "c/x.wav": "bad"}
    for name, text in said.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "in"


@pytest.fixture
def run(run_cli: RunCLI, tree: Path, fake_model: FakeModel) -> RunCLI:
    """`transcribe`, in the folder above the tree."""
    return partial(run_cli, "transcribe", "-o", "out", "-f", "txt")
