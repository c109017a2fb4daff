"""`bench/peers.py`: what it checks first, what it measures again, and what it says at the end."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from tests.support.paths import ROOT

BOTH = "--shapes tiny --engines faster-whisper,slimwhisper --dtypes int8 --batches 8".split()


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of bench/ can be imported, as they import each other."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(ROOT / "bench") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class Fake:
    """A worker that measures nothing: our rounds take 1, 2, 3, ... s, others' twice that."""

    asked: ClassVar[list[str]] = []  # what was measured, of all
    ends_at = 99  # Ctrl-C comes then
    fails = "no engine"

    def __init__(self, case: Any, converted: str) -> None:
        assert Path(converted).is_dir()
        self.case, self.rounds = case, 0

    def measure(self) -> dict[str, Any] | str:
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        if self.case.name == self.fails:
            return "no such library"
        self.asked.append(self.case.name)
        self.rounds += 1
        seconds = self.rounds * (1.0 if self.case.engine == "slimwhisper" else 2.0)
        hours = 10 / seconds
        names = ("tokens_per_second", "first_text_seconds", "sampled")
        values = {"seconds": seconds, "hours_an_hour": hours, **dict.fromkeys(names, 1)}
        return {**values, "memory_mb": None, "peak_mb": None, "texts": None}

    def close(self) -> None:
        self.asked.append("closed")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.import_module("peers")
    check = importlib.import_module("peers_check")
    monkeypatch.setattr(found, "Worker", Fake)
    monkeypatch.setattr(found, "PAUSE", 0)
    monkeypatch.setattr(found, "convert", lambda *_: None)
    monkeypatch.setattr(found, "random_checkpoint", lambda _: None)
    monkeypatch.setattr(found, "missing", lambda *_: [])
    monkeypatch.setattr(found, "lacking", lambda _: None)
    monkeypatch.setattr(check, "copy_rate", lambda _: 1e10)
    monkeypatch.setattr(check, "product_rate", lambda: 1e11)
    monkeypatch.setattr(importlib.import_module("rows"), "commit", lambda: "0123")
    for name, value in {"asked": [], "ends_at": 99, "fails": "no engine"}.items():
        monkeypatch.setattr(Fake, name, value)
    return found


def run(peers: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> str | int | None:
    """The exit status, or the message."""
    monkeypatch.setattr(sys, "argv", ["peers.py", *words])
    try:
        peers.main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_it_goes_on_where_it_was_stopped(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*BOTH, "--rounds", "3", "--results", str(tmp_path / "rows.jsonl")]
    ours, theirs = "slimwhisper int8", "faster-whisper int8"
    Fake.ends_at = 3
    assert run(peers, monkeypatch, *words) == 130
    assert Fake.asked == [theirs, ours, theirs, "closed", "closed"]
    assert f"start again with --results {tmp_path}" in capsys.readouterr().err
    Fake.asked, Fake.ends_at = [], 99
    assert run(peers, monkeypatch, *words) == 0
    assert Fake.asked == [ours, theirs, "closed", ours, "closed"]
    assert "3 rounds, about " in capsys.readouterr().err
    Fake.asked = []
    assert run(peers, monkeypatch, *words) == 0
    assert Fake.asked == []
    said = capsys.readouterr()
    rows = json.loads(said.out.splitlines()[-1])["rows"]
    # theirs: 2 and 4 s, then 2 s by a new worker; ours: 1 s, then 1 and 2 s by a new one
    assert [row["ratios"] for row in rows] == [[2.0, 4.0, 1.0], []]
    assert "| tiny | faster-whisper int8 | 8 | 5.0 | 2.00 (1.00 to 4.00) |" in said.out
    # other settings, another commit: all of it again
    assert run(peers, monkeypatch, *words, "--tokens", "7") == 0
    assert len(Fake.asked) == 8
    monkeypatch.setattr(importlib.import_module("rows"), "commit", lambda: "4567")
    assert run(peers, monkeypatch, *words) == 0
    assert len(Fake.asked) == 16


def test_one_that_fails_does_not_stop_the_others(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Fake.fails = "faster-whisper int8"
    words = "--shapes tiny --dtypes float32,int8 --batches 1,8 --rounds 2".split()

    def convert(_: Any, folder: Path, kinds: list[str], dtype: torch.dtype) -> None:
        assert folder.is_dir() and dtype == torch.float32
        if kinds == ["hugging_face"]:
            raise RuntimeError("no such version")

    monkeypatch.setattr(peers, "convert", convert)
    failed = ", ".join(f"tiny, faster-whisper int8, batch {n}" for n in (1, 8))
    assert run(peers, monkeypatch, *words) == f"failed: conversion to hugging_face, {failed}"
    said = capsys.readouterr()
    assert "hugging_face: no such version" in said.err and "no such library" in said.err
    rows = json.loads(said.out.splitlines()[-1])["rows"]
    whisper, theirs = [("openai-whisper", 1)], "faster-whisper float32"
    ours = ["slimwhisper float32", "slimwhisper int8"]
    assert [(row["peer"], row["batch"]) for row in rows] == [
        *(*whisper, (theirs, 1), (ours[0], 1), (ours[1], 1)),
        *((theirs, 8), (ours[0], 8), (ours[1], 8)),
    ]


def test_files_of_each_shape(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--shapes tiny,base --files 64,16 --batches 1,64 --engines slimwhisper --rounds 1"
    monkeypatch.setattr(sys, "argv", ["peers.py", *words.split(), "--dtypes", "int8"])
    cases = list(peers.cases_of(peers.parsed()))
    found = [(case.model, case.batch, case.files) for case in cases]
    assert found == [("tiny", 1, 4), ("tiny", 64, 64), ("base", 1, 4), ("base", 64, 16)]


def test_wrong_calls(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*words: str) -> str:
        assert run(peers, monkeypatch, *words) == 2
        return capsys.readouterr().err

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "use --device cpu" in complaint("--device", "cuda")
    assert "float16 is not one of" not in complaint("--dtypes", "float64")
    assert "one for each of --shapes" in complaint("--shapes", "tiny,base", "--files", "1,2,3")
    assert "huge is not one of tiny, " in complaint("--shapes", "huge")
    assert "no file can be written there" in complaint("--results", "/no/such/folder/rows.jsonl")
    assert "--folder --model" in complaint("--folder", "samples")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    said = complaint("--device", "cuda", "--engines", "whisper.cpp,transformers")
    assert "not on cuda: whisper.cpp; choose from openai-whisper, transformers, faster" in said
    assert not Fake.asked


def test_what_is_missing_is_said_before_anything_is_measured(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = importlib.import_module("peers_check")
    absent = {"faster_whisper", "pywhispercpp", "matplotlib"}
    monkeypatch.setattr(check, "find_spec", lambda name: None if name in absent else name)
    monkeypatch.setattr(peers, "missing", check.missing)

    def convert(_: Any, folder: Path, kinds: list[str]) -> None:
        raise OSError("torchaudio does not load\nand more")

    monkeypatch.setattr(check, "convert", convert)
    monkeypatch.setattr(check, "import_module", lambda _: None)
    monkeypatch.setattr(check.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    engines = "faster-whisper,whisper.cpp,transformers"
    words = ["--engines", engines, "--batches", "1", "--plot", str(tmp_path / "no" / "plot")]
    assert run(peers, monkeypatch, *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == [
        "faster-whisper: faster-whisper is not installed; pip install faster-whisper",
        "whisper.cpp: pywhispercpp is not installed; pip install pywhispercpp",
        "transformers: OSError: torchaudio does not load; install it again",
        "--plot: matplotlib is not installed; pip install matplotlib",
        f"--plot {tmp_path}/no/plot: no file can be written there; choose another folder",
    ]
    assert "0.0 GB free, and the converted models take 0.4 GB" in lines[-1]
    # without --engines, what is not installed is left out
    monkeypatch.setattr(peers, "lacking", check.lacking)
    monkeypatch.setattr(sys, "argv", ["peers.py"])
    assert peers.parsed().engines == []


def test_an_estimate_follows_what_was_measured(peers: ModuleType) -> None:
    check = importlib.import_module("peers_check")
    dims = peers.OFFICIAL_DIMS["tiny"]
    one = peers.Case("tiny", "slimwhisper", "float32", 1, 4, 50, 1, None)
    estimate = check.Estimate()
    before = estimate.seconds([(one, 3)], {"tiny": dims})
    least = estimate.least(one, dims, 4)
    estimate.learn(one, dims, 10 * check.BOUND * least)
    after = estimate.seconds([(one, 3)], {"tiny": dims})
    assert after - check.STARTING == pytest.approx(10 * (before - check.STARTING))
    assert estimate.seconds([(one, 0)], {"tiny": dims}) == 0
    many = peers.Case("tiny", "slimwhisper", "float32", 64, 64, 50, 1, None)
    assert estimate.least(many, dims, 64) < 16 * least  # its steps share the weights
