"""The report: the paper's table to its last digit, and the engine's own buffers beside it."""

import io
import json
import tomllib
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from slimwhisper.cache.forms import PRESETS, names_of
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.research.report import PAPER_MODELS, make_report, print_report
from tests.support.checkpoints import random_state, save_openai, tiny_dims
from tests.support.command import RunCLI
from tests.support.paths import ROOT

PAPER_TABLE = tomllib.loads((ROOT / "tests/research/paper_table.toml").read_text())


def printed(*models: str) -> str:
    with redirect_stdout(io.StringIO()) as file:
        print_report([make_report(model) for model in models])
    return file.getvalue()


def cells(text: str, label: str) -> list[str]:
    """The cells of the one row with this label; "40.5 MB" is one cell."""
    (row,) = [line for line in text.splitlines() if line.startswith(f"{label} ")]
    return row.removeprefix(label).replace(" MB", "MB").replace(" GB", "GB").split()


def test_prints_every_cell_of_the_papers_table() -> None:
    """The paper's column `large` has 51,865 tokens; the name means large-v3, with one more."""
    assert OFFICIAL_DIMS["large"] == OFFICIAL_DIMS["large-v3"] != OFFICIAL_DIMS["large-v2"]
    every, large = printed(*PAPER_MODELS), printed("large")
    for label, expected in PAPER_TABLE.items():
        assert cells(every, label) == expected.split(), label
        assert cells(large, label) == expected.split()[-1:], label
    assert cells(every, "cache, option 2, E counted")[-1] == "20.3"
    assert cells(every, "saving, option 2, E counted")[-1] == "7.9x"


def test_e_read_by_every_layer_and_the_cross_phase() -> None:
    """At batch 64, 2 n d L + L p d values of cache instead of the paper's; 4 p d^2 L operations."""
    text, report = printed(*PAPER_MODELS), make_report(PAPER_MODELS[-1])
    assert cells(text, "same, E read by every layer") == "1.9x 1.9x 1.9x 1.9x 1.8x".split()
    dims, (baseline, option1, option2) = report.dims, report.predicted
    d, layers, p = dims.n_text_state, dims.n_text_layer, dims.n_audio_ctx
    assert option2.reads_with_e == option2.reads + layers * p * d
    assert option1.reads_with_e == option1.reads
    assert baseline.cross_phase == 4 * p * d**2 * layers == 2 * option1.cross_phase
    assert option2.cross_phase == 0
    assert cells(text, "cross-phase, 10^9, baseline")[-1] == "314.6"


def test_bytes_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a product: on the meta device, PyTorch would import sympy for one."""
    monkeypatch.setattr(torch.linalg, "solve_ex", None)
    text = printed("large", "turbo")
    assert cells(text, "a window, baseline (kv, kv)") == ["319MB", "39.9MB"]
    assert cells(text, "a window, slim (e, x)") == ["40.5MB", "8.4MB"]
    assert cells(text, "a window, option2 (e, k)") == ["40.5MB", "8.4MB"]
    assert cells(text, "paper's option 2, E not counted") == ["36.7MB", "4.6MB"]
    assert cells(text, "64 windows, baseline (kv, kv)")[0] == "20.4GB"
    assert cells(text, "64 windows, slim (e, x)")[0] == "2.6GB"
    assert cells(text, "saving, slim (e, x)") == ["7.9x", "4.7x"]


def test_allocated_and_predicted_agree() -> None:
    """What the engine allocates is the paper's count with E, whatever wrote either down."""
    for name in ("tiny.en", "turbo", "distil-large-v3"):
        report = make_report(name, batch=3, dtype="float32")
        *options, slim = report.allocated
        for live, paper in zip(options, report.predicted, strict=True):
            assert live.preset == paper.option
            assert live.bytes_per_window == 4 * paper.cache_with_e
            assert live.total_bytes == live.cross_bytes + live.self_bytes
            assert live.total_bytes == 3 * live.bytes_per_window
            assert live.saving == report.predicted[0].cache / paper.cache_with_e
        assert slim.total_bytes == options[-1].total_bytes
        assert slim.cross_bytes == 12 * report.dims.n_audio_ctx * report.dims.n_text_state


def test_the_guard(run_cli: RunCLI, random_paths: dict[str, Path]) -> None:
    """Every form of every layer but kv; only those without an inverse are exact."""
    run = run_cli("report", str(random_paths["english"]), "--json", "--guard")
    (found,) = json.loads(run.out)
    assert found["dtype"] == "float16" and found["settings"] == []
    assert {(r["attention"], r["form"]) for r in found["guard"]} == {
        *(("cross", f) for f in names_of("cross") if f != "kv"),
        *(("self", f) for f in names_of("self") if f != "kv"),
    }
    for record in found["guard"]:
        assert (record["used"] == record["form"]) == (record["form"] in ("e", "x"))
    text = run_cli("report", str(random_paths["english"]), "--guard").out
    assert "option1 (k, k) gets e + x" in text and max(map(len, text.splitlines())) <= 100


def test_a_checkpoint(tmp_path: Path) -> None:
    dims = tiny_dims(width=64, heads=2, text_layers=3)
    path = save_openai(tmp_path / "my model.pt", dims, random_state(dims, seed=0))
    assert make_report(str(path), batch=1).dims == dims and "my model.pt" in printed(str(path))


def test_json(run_cli: RunCLI) -> None:
    """And, without models, the paper's table."""
    assert run_cli("report").out == printed(*PAPER_MODELS)
    run = run_cli("report", "turbo", "--batch", "8", "--dtype", "bfloat16", "--json")
    (found,) = json.loads(run.out)
    assert found["model"] == "turbo" and found["batch"] == 8 and found["dtype"] == "bfloat16"
    assert found["dims"] == asdict(OFFICIAL_DIMS["turbo"])
    assert [p["option"] for p in found["predicted"]] == ["baseline", "option1", "option2"]
    assert [a["preset"] for a in found["allocated"]] == list(PRESETS)
    assert found["allocated"][3]["bytes_per_window"] == 8_427_520
