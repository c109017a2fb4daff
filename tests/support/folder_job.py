"""Fixtures for a small folder job on a fake model, and readers of what it writes."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.jobs.journal import JOURNAL_NAME
from tests.support.command import RunCLI

GOOD = {"a.txt": "one\n", "b/a.wav.txt": "two\n", "b/a.mp3.txt": "three\n"}
DONE = {"a.wav": "done", "b/a.wav": "done", "b/a.mp3": "done", "c/x.wav": "failed"}


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
def run(run_cli: RunCLI) -> RunCLI:
    return partial(run_cli, "transcribe", "-o", "out", "-f", "txt")


def written() -> dict[str, str]:
    return {str(p.relative_to("out")): p.read_text() for p in Path("out").rglob("*.*t")}


def journal() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path("out") / JOURNAL_NAME).read_text().splitlines()]


def statuses() -> dict[str, str]:
    lines = journal()
    found = {str(Path(line["path"]).relative_to(Path("in").absolute())): line for line in lines}
    assert len(found) == len(lines)
    return {name: line["status"] for name, line in found.items()}
