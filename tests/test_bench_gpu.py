"""bench/gpu.sh runs here in tiny shapes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "bench" / "gpu.sh"
GROUPS = {
    "first": "machine doctor digits profile kernels graphs marked triton".split(),
    "second": ["decode", "tune"],
    "third": ["peers"],
}
STEPS = [step for steps in GROUPS.values() for step in steps]
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


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of bench/ can be imported, as they import each other."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))


def test_a_failing_step_does_not_stop_the_others(tmp_path: Path, stand_in: str) -> None:
    out = tmp_path / "out"
    done = run(out, "--small", "decode", "tune", "machine", PYTHON=stand_in, LIMIT="1")
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
    assert run(out, "--small", "machine", PYTHON=stand_in).returncode == 0
    assert [r["step"] for r in rows_of(out)] == ["decode", "tune", "machine", "machine"]


@pytest.mark.slow
def test_the_commands_for_a_gpu_are_understood(tmp_path: Path) -> None:
    """Each script parses its arguments up to an added --help; the tests that it names exist."""
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text(f"""#!/bin/sh
case "$*" in
    bench/*) exec {sys.executable} "$@" --help ;;
    *pytest*) echo "$@" ;;
esac
""")
    python.chmod(0o755)
    done = run(out, "all", PYTHON=str(python), LIMIT="100")
    assert done.returncode == 0, done.stdout[-4000:]
    assert [row["step"] for row in rows_of(out)] == STEPS
    log = (out / "log.txt").read_text()
    assert log.count("usage: ") == 6
    tests = set(re.findall(r"tests/\S+\.py", log))
    assert {"tests/kernels/test_graphs.py", "tests/commands/test_doctor.py"} <= tests
    assert all((ROOT / path).is_file() for path in tests)
    table = (ROOT / "kernels" / "configurations.json").read_bytes()
    assert (out / "configurations.json").read_bytes() == table


@pytest.mark.slow
def test_all_of_it_on_a_cpu(tmp_path: Path) -> None:
    table = (ROOT / "kernels" / "configurations.json").read_bytes()
    out = tmp_path / "out"
    done = run(out, "--small")
    assert done.returncode == 0, done.stdout[-4000:]
    rows = rows_of(out)
    steps = {row["step"]: row["status"] for row in rows if row["bench"] == "steps"}
    assert steps == dict.fromkeys(STEPS, 0)
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
