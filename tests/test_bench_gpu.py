"""bench/gpu.sh runs here in tiny shapes; its results make the tables of the docs."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


@pytest.fixture
def results() -> ModuleType:
    return importlib.import_module("gpu_results")


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


ROW = {
    "device": "h200",
    "gpu": "NVIDIA H200",
    "driver": "570.1",
    "torch": "2.11",
    "triton": "3.6",
    "model": "large-v3",
    "preset": "slim",
    "cache_dtype": None,
    "dtype": "float16",
    "batch": 64,
}


def test_rows_of_a_case_are_replaced(results: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    some = [
        {**ROW, "bench": "decode", "beams": 1, "what": "step", "milliseconds": 3.0},
        {**ROW, "bench": "decode", "beams": 5, "what": "step", "milliseconds": 9.0},
        {**ROW, "bench": "profile", "what": "kernel", "milliseconds": 1.0},
        {**ROW, "bench": "kernels", "preset": None, "what": "cross", "milliseconds": 1.0},
    ]
    results.update_measured(path, results.measured(some))
    newer = {**some[0], "torch": "2.13", "milliseconds": 2.0}
    results.update_measured(path, results.measured([newer, {**some[0], "batch": 256}]))
    rows = json.loads(path.read_text())
    assert [(r["batch"], r["torch"], r["milliseconds"]) for r in rows] == [
        *((256, "2.11", 3.0), (64, "2.13", 2.0)),
    ]


def test_results_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(*lines: dict[str, Any], page: str = "") -> str:
        path, text = tmp_path / "r.jsonl", tmp_path / "page.md"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        text.write_text(page)
        command = [sys.executable, str(ROOT / "bench" / "gpu_results.py"), str(path)]
        command += ["--page", str(text), "--measured", str(tmp_path / "m.json")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode
        assert not (tmp_path / "m.json").exists()
        return done.stderr

    step = {**ROW, "bench": "decode", "beams": 1, "what": "step", "milliseconds": 3.0}
    assert "name those of one GPU" in say(step, {**step, "gpu": "NVIDIA L4"})
    assert "no machine" in say({"bench": "steps", "step": "doctor", "status": 0})
    assert "to try it out: --cpu" in say({**step, "device": "cpu"})
    assert "<!-- gpu steps -->" in say(step)


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

    page, measured = tmp_path / "performance.md", tmp_path / "measured.json"
    shutil.copy(ROOT / "docs" / "performance.md", page)
    make = [sys.executable, str(ROOT / "bench" / "gpu_results.py"), str(out / "results.jsonl")]
    subprocess.run([*make, "--cpu", "--page", str(page), "--measured", str(measured)], check=True)
    found = json.loads(measured.read_text())
    cases = {(row["what"], row["preset"], row["cache_dtype"], row["batch"]) for row in found}
    forms = [("slim", None), ("slim", "fp8"), ("baseline", None)]
    assert cases >= {(what, *form, 2) for what in ("step", "window") for form in forms}
    assert cases >= {("encoder", "slim", None, 1), ("prompt", "slim", None, 1)}
    assert cases >= {("cross", "slim", None, 2), ("self", "slim", None, 2)}
    assert all(row["milliseconds"] > 0 and row["device"] == "cpu" for row in found)
    text = page.read_text()
    assert "Not measured yet." not in text.partition("### What the compiled")[0]
    tables = dict(re.findall(r"<!-- gpu (\w+) -->\n(.*?)\n<!-- end of gpu \1 -->", text, re.S))
    assert "| tiny | `slim` fp8 | 2 |" in tables["steps"]
    assert "| tiny | E | 2 |" in tables["attention"] and "| tiny | X | 2 |" in tables["attention"]
    assert "**tiny, `slim`, prompt, 1 windows**" in tables["kernels"]
    assert "slimwhisper float32 | 1 |" in tables["peers"]
    assert all(f"| {step} | passed |" in tables["status"] for step in STEPS)
    assert all("torch" in table.splitlines()[0] for table in tables.values())
