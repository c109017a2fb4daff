"""`bench/rows.py`: what is kept of a file of results, and the tables' numbers."""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.support.paths import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    found = importlib.import_module("rows")
    monkeypatch.setattr(found, "commit", lambda: "0123")
    yield found
    for name in ("rows", "timing"):
        sys.modules.pop(name, None)


def test_rows_are_found_again(
    rows: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rows.jsonl"
    first = rows.Rows(path, "peers", CPU)
    assert first.kept() == []
    row = first.add(shape="tiny", batch=8, seconds=1.0)
    assert first.kept(shape="tiny") == [row]
    with path.open("a") as file:
        file.write('{"bench": "peers", "sec')  # stopped within a line
    again = rows.Rows(path, "peers", CPU)
    assert "line 2 is no JSON" in capsys.readouterr().out
    assert again.kept(shape="tiny", batch=8) == [row]
    assert again.kept(shape="tiny", batch=1) == []
    more = again.add(shape="tiny", batch=1)
    assert rows.Rows(path, "peers", CPU).kept(shape="tiny") == [row, more]
    # of another bench, machine, version or commit
    assert rows.Rows(path, "live", CPU).kept() == []
    monkeypatch.setattr(rows.os, "sched_getaffinity", lambda _: range(99))
    assert rows.Rows(path, "peers", CPU).kept() == []
    monkeypatch.undo()
    monkeypatch.setattr(rows, "commit", lambda: "4567")
    assert rows.Rows(path, "peers", CPU).kept() == []
    monkeypatch.setattr(rows, "commit", lambda: None)  # not a repository: nothing can be told
    unknown = rows.Rows(path, "peers", CPU)
    assert unknown.kept() == [] and unknown.kept() != [unknown.add(a=1)] == unknown.kept(a=1)


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    rows = importlib.import_module("rows")
    package = tmp_path / "slimwhisper" / "__init__.py"
    package.parent.mkdir()
    package.write_text("a = 1\n")
    monkeypatch.setattr(rows, "find_spec", lambda _: SimpleNamespace(origin=str(package)))
    tell = rows.commit.__wrapped__

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    assert tell() is None
    git("init")
    assert tell() is None  # not tracked, as an installed one
    git("add", ".")
    git("commit", "-m", "a")
    clean = tell()
    assert len(clean) == 12
    package.write_text("a = 2\n")
    changed = tell()
    assert changed.startswith(f"{clean}+")
    package.write_text("a = 3\n")
    assert tell() not in (clean, changed)


def test_numbers_of_tables(rows: ModuleType) -> None:
    assert rows.spread([1.0, 1.256, 3.0]) == "1.26 (1.00 to 3.00)"
    assert rows.spread([1.0]) == "1.00"
    assert rows.table(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |"


def test_values_with_commas(rows: ModuleType, tmp_path: Path) -> None:
    assert rows.listed(int)("8, 1,8") == [8, 1]
    with pytest.raises(argparse.ArgumentTypeError, match="large is not one of tiny, base"):
        rows.listed(str, ("tiny", "base"))("tiny,large")
    with pytest.raises(argparse.ArgumentTypeError, match="choose another"):
        rows.checked_path(str(tmp_path))
    assert rows.checked_path(str(tmp_path / "new")) == tmp_path / "new"


def test_an_interruption_is_one_line(
    rows: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended, rows.stoppable(Path("a.jsonl")):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped; to go on, start again with --results a.jsonl\n"
