"""The benches of kernels and decode steps run here, in a small form."""

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.spoken import SAMPLES

BENCH = ROOT / "bench"


def run(script: str, out: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCH / script), "--output_dir", str(out), "--shapes", "tiny"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_kernels(tmp_path: Path) -> None:
    """Of several rows a window; of one: tests/test_bench_gpu.py."""
    found = run("kernels.py", tmp_path, "--windows", "1", "--repeats", "1", "--rows", "5")
    names = {row["operation"] for row in found["results"]}
    assert names == {
        *("E", "E, float8", "E, SDPA", "K, V", "K, V, SDPA"),
        *("X", "X, float8", "text K, V"),
    }
    assert all(row["to_baseline"] > 0 for row in found["results"])
    assert all(row["cold_us"] > 0 and row["of_copy"] > 0 for row in found["results"])
    assert found["machine"]["torch"] and set(found["used"])
    assert (tmp_path / "kernels-tiny.png").stat().st_size > 5_000


@pytest.mark.slow
def test_decode(tmp_path: Path) -> None:
    arguments = ("--windows", "1", "2", "--beams", "2", "--steps", "1", "--tokens", "2")
    found = run("decode.py", tmp_path, *arguments, "--forms", "baseline", "slim")
    cases = {(r["form"], r["windows"], r["beams"]) for r in found["results"]}
    assert len(cases) == len(found["results"]) == 2 * 2
    assert all(r["step_ms"] > 0 and r["window_ratio"] > 0 for r in found["results"])
    assert (tmp_path / "decode-tiny.png").stat().st_size > 5_000


def line(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCH / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_peers(tmp_path: Path) -> None:
    """With the two that are installed wherever the tests run; they must say the same."""
    command = ["peers.py", "--model", "digits", "--folder", str(SAMPLES), "--files", "2"]
    command += ["--engines", "openai-whisper,slimwhisper", "--dtypes", "float32"]
    command += ["--batches", "1,2", "--rounds", "2", "--results", str(tmp_path / "rows.jsonl")]
    found = line(*command, "--plot", str(tmp_path / "peers"))
    cases = [(row["peer"], row["batch"]) for row in found["rows"]]
    assert cases == [("openai-whisper", 1), *(("slimwhisper float32", n) for n in (1, 2))]
    assert all(row["same_texts"] == 1 and row["sampled"] > 5 for row in found["rows"])
    assert [len(row["ratios"]) for row in found["rows"]] == [2, 0, 0]
    assert (tmp_path / "peers.png").stat().st_size > 5_000
    assert (tmp_path / "peers.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_drafts(tmp_path: Path) -> None:
    """Guesses that are all right, and none; what a draft takes is no less than its weights."""
    results = ("--results", str(tmp_path / "rows.jsonl"))
    tiny = ("--shapes", "tiny", "--layers", "1")
    rated = ("drafts.py", "rated", *tiny, *results, "--windows", "2", "--tokens", "12")
    caches = ("--cross-caches", "e,kv")
    found = line(*rated, *caches, "--rates", "0,1", "--rounds", "1")["results"]
    cases = [(row["cross"], row["rate"], row["different"]) for row in found]
    assert cases == [(form, rate, 0) for form in ("e", "kv") for rate in (0.0, 1.0)]
    # how many are guessed depends on what steps take
    assert found[0]["right"] == 0
    assert found[1]["right"] == found[1]["guessed"]
    draft = ROOT / "slimwhisper" / "models" / "digits.pt"
    memory = ("drafts.py", "memory", "--draft", str(draft), *results, "--windows", "2")
    (row,) = line(*memory)["results"]
    assert row["text"] == row["text_said"] > 0
    assert row["weights"] > 0.9 * row["weights_said"]


@pytest.mark.slow
def test_drafts_on_recordings(tmp_path: Path) -> None:
    """The model as its own draft, which is always right."""
    for name in ("phone-number.wav", "countdown.flac"):
        shutil.copy(SAMPLES / name, tmp_path)
    draft = ROOT / "slimwhisper" / "models" / "digits.pt"
    command = ["drafts.py", "texts", str(tmp_path), "--draft", str(draft), "--windows", "1,2"]
    found = line(*command, "--lengths", "3", "--rounds", "1")["results"]
    assert [(row["windows"], row["different"]) for row in found] == [(1, 0), (2, 0)]
    assert all(row["right"] == row["guessed"] > 0 for row in found)
    assert all(row["tokens_per_step"] > 2 and row["encoder_seconds"] > 0 for row in found)


@pytest.mark.slow
def test_a_server(tmp_path: Path) -> None:
    for name in ("door-code.mp3", "flight.m4a", "phone-number.wav"):
        shutil.copy(SAMPLES / name, tmp_path)
    found = line("serve.py", str(tmp_path), "--at_once", "3", "--requests", "6")
    assert found["recordings"] == 3
    assert found["different"] == 0
    assert found["together"]["batch_fill"] >= 1
    assert found["after"]["files"] <= found["before"]["files"] + 8


def test_mutants() -> None:
    """Each is another module than before; the table names files that there are."""
    spec = importlib.util.spec_from_file_location("mutants", BENCH / "mutants.py")
    assert spec is not None and spec.loader is not None
    mutants = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutants)
    for modules, tests, count in mutants.AREAS.values():
        assert count and all((ROOT / path).is_file() for path in (*modules, *tests))
        for module in modules:
            source = (ROOT / module).read_text()
            some = mutants.chosen(source, count, 0)
            sources = {ast.unparse(ast.parse(source)), *(m.source for m in some)}
            assert some and len(sources) == len(some) + 1
        assert some == mutants.chosen(source, count, 0)
    source = "def f(a: int = 1) -> bool:\n    if a < 2:\n        raise ValueError(a + 1)\n    f(0)"
    assert [m.change for m in mutants.mutants(source)] == [
        "a: int=[1 => 2]",
        "[ => not ]a < 2",
        "a [< => <=] 2",
        "a < [2 => 3]",
        "[f(0) => pass]",
        "f([0 => 1])",
    ]
