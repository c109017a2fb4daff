"""The scripts of bench/ run, in a small form."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.model.model import Model
from tests.support.bench import BENCH, imported, last_line, output
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.paths import ROOT, SAMPLES, SHARED
from tests.support.pretend.cuda import pretend_cuda

FSDD = SHARED / "audio" / "fsdd"
CPU = torch.device("cpu")
DIGITS = str(ROOT / "slimwhisper" / "models" / "digits.pt")
needs_recordings = pytest.mark.skipif(not FSDD.is_dir(), reason="needs the recordings of shared/")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with imported(monkeypatch) as load:
        yield load


@pytest.mark.slow
def test_what_another_build_says(tmp_path: Path) -> None:
    """The same by the same build; a changed number is found."""
    out, flags = tmp_path / "before.json", [str(SAMPLES), "--files", "2", "--seconds", "8"]
    output("oracle.py", *flags, "--out", str(out))
    said = json.loads(out.read_text())
    assert len(said) == 21 and all(said.values())
    transcript, events = said["greedy, 8"]["door-code.mp3"]
    assert events == [4.060625, [1, 4.060625], "end"]
    transcript["segments"][0]["avg_logprob"] += 1e-15
    out.write_text(json.dumps(said))
    flags += ["--cases", "transcripts", "--against", str(out)]
    command = [sys.executable, BENCH / "oracle.py", *flags]
    again = subprocess.run(command, capture_output=True, text=True)
    changed = [line for line in again.stdout.splitlines() if not line.endswith("same")]
    assert changed == ["greedy, 8: 2, CHANGED: ['door-code.mp3']"] and again.returncode == 1


@pytest.mark.slow
def test_a_server(tmp_path: Path) -> None:
    for name in ("door-code.mp3", "flight.m4a", "phone-number.wav"):
        shutil.copy(SAMPLES / name, tmp_path)
    found = last_line("serve.py", str(tmp_path), "--at_once", "3", "--requests", "6")
    assert found["recordings"] == 3 and found["different"] == 0
    assert found["after"]["files"] <= found["before"]["files"] + 8


@pytest.mark.slow
@needs_recordings
def test_live_streams() -> None:
    pytest.importorskip("websockets", reason="needs the extra app")
    row = last_line("live.py", str(FSDD), "--streams", "1", "--seconds", "5", "--window", "10")
    assert row["words"] >= 6 and row["word_errors"] < 50
    assert 0 < row["p50"] <= row["p95"] and row["updates"] > 0


def test_scores_of_live_streams(bench: Any) -> None:
    """Delays count from a word's end; what was shown and taken back is erased."""
    pytest.importorskip("websockets", reason="needs the extra app")
    streams = bench("live_streams")
    shown = streams.Shown()
    for at, committed, tentative in (
        (1.0, "", "one too"),
        (2.0, "One", " two three"),
        (4.5, " two, thr", ""),
        (5.0, "ee", ""),
    ):
        shown.commit(committed, at)
        shown.show(tentative)
    truth = [streams.Spoken(w, i + 0.8) for i, w in enumerate("one two three".split())]
    score = streams.score(truth, "one two four", [shown])
    assert score.delays == pytest.approx([2.0 - 0.8, 4.5 - 1.8, 5.0 - 2.8])
    assert score.last_delays == score.delays[-1:]
    assert (score.truth_errors, score.offline_errors, score.live_words) == (0, 1, 3)
    assert score.erased == 3  # "too", "three", "thr"


SCRIPT = ROOT / "bench" / "gpu.sh"
# A stand-in for Python: says what it is asked, is slow as decode.py, and fails as tune.py.
STAND_IN = """#!/bin/sh
echo "asked: $*"
case "$*" in
    *decode.py*) sleep 30 ;;
    *tune.py*) echo "no such luck"; exit 7 ;;
esac
"""


def run(out: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    setting = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "OUT": str(out), **environment}
    return subprocess.run(
        ["bash", str(SCRIPT), *words], capture_output=True, text=True, env=os.environ | setting
    )


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    path = tmp_path / "python"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def listed(*words: str) -> dict[str, int]:
    """The steps and their limits in seconds."""
    command = ["bash", str(SCRIPT), "--list", *words]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: int(limit) for name, limit in map(str.split, lines)}


CALLS = ("kernels", "steps", "whole", "exact", "tune")


def test_each_call_ends_within_ten_minutes() -> None:
    calls = {call: listed(call) for call in CALLS}
    assert all(0 < sum(steps.values()) < 600 for steps in calls.values())
    assert listed("waits", "machine") == {"waits": 70, "machine": 30}
    assert [name for steps in calls.values() for name in steps] == [*listed()]
    page = (ROOT / "docs" / "gpu-bench.md").read_text()
    for call, steps in calls.items():
        assert f"bench/gpu.sh {call}" in page
        assert all(
            f"| {name} |" in page and f"| {limit} |" in page for name, limit in steps.items()
        )
    wrong = subprocess.run(["bash", str(SCRIPT), "nine"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no step nine; calls: kernels" in wrong.stderr


def test_a_failing_step_does_not_stop_the_others(tmp_path: Path, stand_in: str) -> None:
    out = tmp_path / "out"
    small = {"PYTHON": stand_in, "SMALL": "1"}
    done = run(out, "decode", "tune", "machine", **small, LIMIT="1")
    assert done.returncode == 1
    assert "failed (124: stopped at its limit): decode (124) tune (7)" in done.stdout
    rows = rows_of(out)
    assert [(r["step"], r["status"]) for r in rows] == [
        ("decode", 124),
        ("tune", 7),
        ("machine", 0),
    ]
    assert rows[1]["last"] == "no such luck"
    log = (out / "log.txt").read_text()
    assert log.index("asked: bench/decode.py") < log.index("no such luck") < log.index("rows.py")
    # a second run appends
    assert run(out, "machine", **small).returncode == 0
    assert [r["step"] for r in rows_of(out)] == ["decode", "tune", "machine", "machine"]


def test_the_commands_for_a_gpu_are_understood(
    tmp_path: Path, bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each script parses its arguments up to an added --help; the tests that it names exist."""
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text('#!/bin/sh\ncase "$*" in *bench/* | *pytest*) echo "asked: $*" ;; esac\n')
    python.chmod(0o755)
    done = run(out, "all", PYTHON=str(python), LIMIT="100")
    assert done.returncode == 0, done.stdout[-4000:]
    assert [row["step"] for row in rows_of(out)] == [*listed()]
    log = (out / "log.txt").read_text()
    asked = re.findall(r"^asked: bench/(\w+)\.py(.*)$", log, re.M)
    assert len(asked) == 11
    for script, arguments in asked:
        monkeypatch.setattr(sys, "argv", [script, *arguments.split(), "--help"])
        with pytest.raises(SystemExit, match="0"):
            bench(script).main()
        assert capsys.readouterr().out.startswith("usage: ")
    tests = set(re.findall(r"tests/\S+\.py", log))
    assert {"tests/kernels/test_graphs.py", "tests/commands/test_doctor.py"} <= tests
    assert all((ROOT / path).is_file() for path in tests)
    table = (ROOT / "kernels" / "configurations.json").read_bytes()
    assert (out / "configurations.json").read_bytes() == table


@pytest.mark.slow
def test_all_of_it_on_a_cpu(tmp_path: Path) -> None:
    table = (ROOT / "kernels" / "configurations.json").read_bytes()
    out = tmp_path / "out"
    done = run(out, "all", SMALL="1")
    assert done.returncode == 0, done.stdout[-4000:]
    rows = rows_of(out)
    steps = {row["step"]: row["status"] for row in rows if row["bench"] == "steps"}
    assert steps == dict.fromkeys(listed(), 0)
    assert {path.name for path in out.iterdir()} == {
        *("log.txt", "results.jsonl", "configurations.json"),
    }
    assert json.loads((out / "configurations.json").read_text())
    assert (ROOT / "kernels" / "configurations.json").read_bytes() == table
    log = (out / "log.txt").read_text()
    assert "Triton: interpreted on the CPU" in log and "nine" in log
    assert any(row.get("step") == "triton" and "passed" in row["last"] for row in rows)

    names = {(row["bench"], row.get("what"), row.get("preset")) for row in rows}
    assert names >= {("decode", w, p) for w in ("step", "window") for p in ("slim", "baseline")}
    assert names >= {("profile", part, "slim") for part in ("step", "encoder", "prompt", "kernel")}
    assert names >= {("kernels", part, "slim") for part in ("cross", "self")}
    assert names >= {("prompts", "start", "slim"), ("end to end", "window", "slim")}
    exact = {row["what"]: row for row in rows if row["bench"] == "exactness"}
    assert exact["texts"]["count"] == exact["overlap"]["count"] == 0
    assert exact["logits"]["same_token"] == 1 and exact["logits"]["largest"] < 1e-3


@pytest.mark.parametrize("windows", [1, 2])
def test_only_a_full_group_is_timed(windows: int, bench: Any) -> None:
    """On a pretend GPU: every step that is timed replays one graph for all windows."""
    engines, decode = bench("engines"), bench("decode")
    with pretend_cuda() as gpu:
        model = tiny_model(torch.device("cuda", 0))
        engine = engines.full_engine(model, windows, 1)
        with engines.only_replays(engine, 3), gpu.counting() as counts:
            for _ in range(3):
                engine.step()
        assert counts.kernels["graph"] == 3
        with pytest.raises(AssertionError), engines.only_replays(engine, 2):
            engine.step()
        decode.window_seconds(model, windows, 1, 2, 4)  # with its encoder again


def test_waits_are_found_by_line(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch warns of, in the second of two runs."""
    decode, added = bench("decode"), []
    model = tiny_model(CPU)
    encode = model.encoder

    def slow(mel: torch.Tensor) -> torch.Tensor:
        if counting:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return encode(mel)

    model.encoder = slow
    rows = SimpleNamespace(add=lambda **row: added.append(row))
    catch = warnings.catch_warnings

    def catching(**options: Any) -> Any:
        counting.append(True)
        return catch(**options)

    counting: list[bool] = []
    monkeypatch.setattr(warnings, "catch_warnings", catching)
    decode.count_waits(model, {}, SimpleNamespace(windows=[1], tokens=2), rows)
    assert [(row["count"], "test_bench.py" in row["line"]) for row in added] == [(3, True)]


def tiny_model(device: torch.device) -> Model:
    """Of two layers, with all of Whisper's text positions."""
    dims = replace(tiny_dims(multilingual=True, text_layers=2), n_audio_ctx=1500, n_text_ctx=448)
    return Model(Checkpoint("random", dims, random_state(dims, seed=1)), device, torch.float32)
