"""The scripts of bench/ run, in a small form, and say what was measured."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command import python
from tests.support.paths import ROOT, SAMPLES
from tests.support.spoken import EXPECTED

BENCH = ROOT / "bench"
SCRIPT = BENCH / "gpu.sh"
TABLE = ROOT / "kernels" / "configurations.json"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of bench/, as its modules import each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def output(script: str, *arguments: str) -> str:
    """What a script prints; it must succeed."""
    done = python(str(BENCH / script), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def ratios(bench: Any, *rows: tuple[str, str, int, float]) -> dict[str, tuple[str, float]]:
    """The best other engine beside each of ours: rows of (engine, dtype, at a time, speed)."""
    case = {"model": "tiny", "files": 8, "tokens": 50, "threads": 2, "audio": None}
    numbers = dict.fromkeys(("seconds_spent", "first_text_seconds", "peak_mb"), 1.0)
    numbers |= {"texts": None, "sampled": 400, "fewest_tokens": 50, "most_tokens": 50}
    summary, make = bench("peers_summary"), bench("peer_engines.case").Case
    results = {
        make(engine=e, dtype=d, batch=b, **case): {0: numbers | {"hours_an_hour": speed}}
        for e, d, b, speed in rows
    }
    found = summary.summaries(results, {})
    return {row["peer"]: (row["best"], row["ratios"][0]) for row in found if row["ratios"]}


def test_the_peak_of_memory(bench: Any) -> None:
    processes, device = bench("peers_processes"), torch.device("cpu")
    processes.reset_peak(device)
    before = processes.peak_bytes(device)
    torch.ones(50_000_000)
    assert 190e6 < processes.peak_bytes(device) - before < 400e6


def test_the_best_other_engine_is_compared_with(bench: Any) -> None:
    """Of the same group of dtypes, at as many windows at a time, or fewer without batches."""
    assert ratios(
        bench,
        *(("slimwhisper", "float32", 8, 60.0), ("slimwhisper", "int8", 8, 100.0)),
        *(("faster-whisper", "float32", 8, 10.0), ("transformers", "bfloat16", 8, 20.0)),
        *(("whisper.cpp", "q5_0", 1, 40.0), ("whisper.cpp", "q8_0", 64, 500.0)),
    ) == {
        "slimwhisper float32": ("transformers bfloat16", 3.0),
        "slimwhisper int8": ("whisper.cpp q5_0, 1 at a time", 2.5),
    }


def gpu_sh(out: Path, **environment: str) -> dict[str, int]:
    """Runs all steps; returns the status of each, in their order."""
    setting = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "OUT": str(out), **environment}
    command = ["bash", str(SCRIPT), "all"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | setting)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    steps = {row["step"]: row["status"] for row in rows if row["bench"] == "steps"}
    assert done.returncode == any(steps.values()), done.stdout[-4000:]
    return steps


def listed(call: str = "all") -> dict[str, int]:
    """The steps and their limits in seconds."""
    command = ["bash", str(SCRIPT), "--list", call]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: int(limit) for name, limit in map(str.split, lines)}


def test_the_commands_for_a_gpu(
    tmp_path: Path, bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a stand-in for Python: a step that fails stops no other; each call ends within ten
    minutes; each script parses its arguments, up to an added --help; the tests named exist.
    """
    program, out = tmp_path / "python", tmp_path / "out"
    program.write_text('#!/bin/sh\necho "asked: $*"\ncase "$*" in *tune.py*) exit 7 ;; esac\n')
    program.chmod(0o755)
    steps = gpu_sh(out, PYTHON=str(program), LIMIT="100")
    assert steps == dict.fromkeys(listed(), 0) | {"tune": 7}
    log = (out / "log.txt").read_text()
    asked = re.findall(r"^asked: bench/(\w+)\.py(.*)$", log, re.M)
    assert len(asked) > 8
    for script, arguments in asked:
        monkeypatch.setattr(sys, "argv", [script, *arguments.split(), "--help"])
        with pytest.raises(SystemExit, match="0"):
            bench(script).main()
        assert capsys.readouterr().out.startswith("usage: ")
    tests = set(re.findall(r"tests/\S+\.py", log))
    assert tests and all((ROOT / path).is_file() for path in tests)
    page = (ROOT / "docs/internals/gpu.md").read_text()
    for call in ("kernels", "steps", "whole", "exact", "tune"):
        assert f"bench/gpu.sh {call}" in page and 0 < sum(listed(call).values()) < 600
    assert all(f"| {name} |" in page for name in steps)


@pytest.mark.slow
def test_all_of_it_on_a_cpu(tmp_path: Path) -> None:
    before = TABLE.read_bytes()
    assert gpu_sh(tmp_path, SMALL="1") == dict.fromkeys(listed(), 0)
    assert json.loads((tmp_path / "configurations.json").read_text())
    assert TABLE.read_bytes() == before
    assert "Triton: interpreted on the CPU" in (tmp_path / "log.txt").read_text()


def whole(found: dict[str, Any]) -> bool:
    return bool(found["recordings"] > 2 and found["different"] == 0)


def right(found: dict[str, Any]) -> bool:
    return bool(found["word_errors"] < 50 and 0 < found["p50"] <= found["p95"])


def same(found: dict[str, Any]) -> bool:
    """Ours and another engine say the same words, and are compared."""
    rows = found["rows"]
    return len(rows) == 2 and bool(rows[1]["ratios"]) and all(r["differences"] == 0 for r in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("serve.py SAMPLES --count 3 --at_once 3 --requests 6", whole),
        ("live.py SAMPLES --streams 1 --seconds 5 --window 10", right),
        ("live.py SAMPLES --policy --seconds 15", right),
        (
            "peers.py --model digits --folder SAMPLES --files 2 --seconds 5 --rounds 1 "
            "--engines openai-whisper,slimwhisper --dtypes float32 --jobs folder",
            same,
        ),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_a_script(command: str, check: Callable[[dict[str, Any]], bool]) -> None:
    said = output(*command.replace("SAMPLES", str(SAMPLES)).split())
    found = json.loads(said.splitlines()[-1])
    assert check(found), found


@pytest.mark.filterwarnings("ignore:.*english.json:pytest.PytestUnraisableExceptionWarning")
def test_windows_as_mlperf_counts_them(
    tmp_path: Path, bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a chapter in LibriSpeech's layout, whose recordings are joined."""
    said = EXPECTED["phone-number.wav"]["text"].upper()
    for name in ("84-121123-0000", "84-121123-0001"):
        shutil.copy(SAMPLES / "phone-number.wav", tmp_path / f"{name}.wav")
        with (tmp_path / "84-121123.trans.txt").open("a") as file:
            file.write(f"{name} {said}\n")
    flags = ["--model=digits", f"--audio={tmp_path}", "--windows=2"]
    monkeypatch.setattr(sys, "argv", ["mlperf.py", *flags])
    bench("mlperf").main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["windows"], found["tokens"], found["word_errors"]) == (2, 2 * 20, 0)


@pytest.mark.slow
def test_a_changed_result_is_found(tmp_path: Path) -> None:
    """What another build said, against this one."""
    out, flags = tmp_path / "before.json", [str(SAMPLES), "--files", "2", "--seconds", "8"]
    flags += ["--cases", "transcripts"]
    output("oracle.py", *flags, "--out", str(out))
    said = json.loads(out.read_text())
    said["greedy, 8"]["door-code.mp3"][0]["segments"][0]["avg_logprob"] += 1e-15
    out.write_text(json.dumps(said))
    again = python(str(BENCH / "oracle.py"), *flags, "--against", str(out))
    changed = [line for line in again.stdout.splitlines() if not line.endswith("same")]
    assert changed == ["greedy, 8: 2, CHANGED: ['door-code.mp3']"] and again.returncode == 1
