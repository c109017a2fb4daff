"""bench/gpu.sh runs here in tiny shapes."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT

SCRIPT = ROOT / "bench" / "gpu.sh"
GROUPS = {
    "first": "machine doctor digits profile kernels graphs marked triton".split(),
    "second": ["decode", "tune"],
    "third": ["peers"],
}
STEPS = [step for steps in GROUPS.values() for step in steps]
INSTALLING = 45  # seconds, the limit of the step `wheels`
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


def test_groups_fit_into_ten_minutes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gpu-bench.md").read_text()
    for group, steps in GROUPS.items():
        listed = [line.split() for line in run(tmp_path, "--list", group).stdout.splitlines()]
        assert [name for name, _ in listed] == steps
        assert sum(int(limit) for _, limit in listed) + INSTALLING < 600
        for name, limit in listed:
            assert re.search(rf"^\| {name} \|.*\| {limit} \|$", page, re.M), name


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


def test_wheels_are_installed_first(tmp_path: Path, stand_in: str) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "peer-1-py3-none-any.whl").touch()
    done = run(tmp_path / "out", "--small", "machine", PYTHON=stand_in, WHEELS=str(wheels))
    assert done.returncode == 0
    assert [row["step"] for row in rows_of(tmp_path / "out")] == ["wheels", "machine"]
    assert f"--no-deps --no-compile --target {os.sep}" in done.stdout
    assert str(wheels / "peer-1-py3-none-any.whl") in (tmp_path / "out" / "log.txt").read_text()


def test_wrong_calls(tmp_path: Path, stand_in: str) -> None:
    done = run(tmp_path, "kernel")
    assert done.returncode == 2 and done.stderr.startswith("no step kernel; the steps: machine")
    assert run(tmp_path).returncode == 2
    assert run(tmp_path, "--small", "machine", WHEELS=str(tmp_path / "none")).returncode == 2
    failing = Path(stand_in)
    failing.write_text("#!/bin/sh\nexit 1\n")
    done = run(tmp_path, "machine", PYTHON=stand_in)
    assert done.returncode == 2 and "to try this on a CPU: bench/gpu.sh --small" in done.stderr


def test_names_of_gpus() -> None:
    short_name = importlib.import_module("rows").short_name
    names = {
        "NVIDIA H200": "h200",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA L4": "l4",
        "NVIDIA GeForce RTX 4090": "4090",
        "NVIDIA L40S": "l40s",
        "Quadro": "quadro",
    }
    assert {name: short_name(name) for name in names} == names


def test_the_table_is_in_the_order_of_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest first, also where it needs less shared memory; what does not run, last."""
    tune, rows = (importlib.import_module(name) for name in ("tune", "rows"))
    shape = next(c for c in tune.configurations() if c.kernel == "latent" and c.capability == 80)
    times = {300: None, 200: 2.0, 100: 1.0, 999: 0.1}  # shared memory: milliseconds
    some = [replace(shape, shared=shared) for shared in times]

    def timed(c: Any) -> float:
        if (found := times[c.shared]) is None:
            raise RuntimeError("out of resources")
        return found

    monkeypatch.setattr(tune, "milliseconds", timed)
    monkeypatch.setattr(
        tune.torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(shared_memory_per_block_optin=500),
    )
    written = rows.Rows(tmp_path / "results.jsonl", "tune", torch.device("cpu"))
    order = tune.fastest(some, written)
    assert [c.shared for c in order] == [100, 200, 300, 999]
    assert [r["milliseconds"] for r in rows_of(tmp_path)] == [2.0, 1.0]
    order[1] = replace(order[1], capability=70)  # of use to older GPUs
    tune.write(tune.useful(order), tmp_path / "table.json")
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["shared"] for row in table] == [100, 200]


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
