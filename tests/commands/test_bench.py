"""The bench command on tiny random checkpoints: what it measures, prints and refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimwhisper import cli
from slimwhisper.cache.forms import PRESETS
from slimwhisper.checkpoint.files import expected_shapes
from slimwhisper.commands import bench as benchmark
from slimwhisper.commands.bench import make_cases, measure_in_process
from slimwhisper.commands.measurement import Case, Memory, measure
from slimwhisper.commands.parsers import BATCHES
from slimwhisper.commands.random_weights import random_checkpoint
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.guard import guarded_plan
from tests.support.checkpoints import random_state, save_openai, tiny_dims
from tests.support.command import RunCLI, die

TINY = ("--windows", "2", "--tokens", "3", "--rounds", "1", "--threads", "1")
CPU = torch.device("cpu")
POSITIVE = (
    "batch windows tokens_sampled tokens_per_second decode_tokens_per_second times_real_time "
    "files_per_hour first_token_seconds peak_bytes"
).split()


def case(path: Path, **changes: Any) -> Case:
    given = {"batch": 2, "windows": 2, "tokens": 3, "random": False, "device": "cpu"}
    return Case(cache="slim", model=str(path), **given | changes)


def cases_of(*arguments: str) -> list[Case]:
    return make_cases(cli.build_parser().parse_args(["bench", *arguments]))


@pytest.mark.slow
def test_table_and_json(run_cli: RunCLI, random_paths: dict[str, Path]) -> None:
    """Every key, sensible numbers, and exactly the tokens that were asked for."""
    model = str(random_paths["english"])
    run = run_cli(
        *("bench", "--model", model, "--device", "cpu", *TINY),
        *("--cache", "slim", "baseline", "--batch", "2"),
    )
    assert (run.status, run.err) == (0, "")
    *table, last = run.out.splitlines()
    answer = json.loads(last)
    rows = [(row["cache"], row["forms"]) for row in answer["rows"]]
    assert rows == [("slim", "e+x"), ("baseline", "kv+kv")]
    for row in answer["rows"]:
        assert all(row[key] > 0 for key in POSITIVE), row
        assert row["tokens_sampled"] == answer["tokens"] * row["windows"]
        assert len(row["seconds"]) == len(row["encoder_seconds"]) == answer["rounds"]
        assert 0 < row["encoder_seconds"][0] < row["seconds"][0]
        rate = answer["recording_seconds"] * row["files_per_hour"] / 3600
        assert row["times_real_time"] == pytest.approx(rate)
    expected = {"bench": "decode", "model": model, "random": False, "dtype": "float32", "tokens": 3}
    assert answer.items() >= (expected | {"device": "cpu", "rounds": 1}).items()
    machine = answer["machine"]
    assert machine["threads"] == 1 and machine["gpu"] is None and machine["cpu"]
    assert machine["torch"] == torch.__version__
    shown = {line.split()[0]: line.split()[1:3] for line in table if line}
    assert shown.items() >= {"baseline": ["2", "2"], "slim": ["2", "2"]}.items()
    assert not any("…" in line for line in table)


@pytest.mark.parametrize(("name", "beam_size"), [("english", 2), ("multilingual", None)])
def test_every_window_samples_the_same_number(
    random_paths: dict[str, Path], name: str, beam_size: int | None
) -> None:
    """Of a model that would end its texts and sample timestamps."""
    found = measure(case(random_paths[name], tokens=9, beam_size=beam_size))
    assert found["tokens_sampled"] == 2 * 9
    assert 0 < found["encoder_seconds"] < found["seconds"]
    assert found["first_token_seconds"] > 0


def test_cases() -> None:
    """By default; and of large batches."""
    cases = cases_of()
    assert {(c.cache, c.batch) for c in cases} == {(c, b) for c in PRESETS for b in BATCHES}
    assert [c.windows for c in cases[: len(BATCHES)]] == [4, 16, 32, 128]
    assert all((c.model, c.random, c.tokens) == ("tiny", True, 100) for c in cases)
    small, large = cases_of("--cache", "slim", "--batch", "1", "200")
    assert (small.windows, large.windows) == (4, 200)
    assert [c.windows for c in cases_of("--batch", "8", "--windows", "5")] == [5] * len(PRESETS)


def test_in_turns(random_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    monkeypatch.setattr(benchmark, "measure_in_process", lambda c: order.append(c.batch))
    cases = [case(random_paths["english"], batch=b) for b in (1, 2, 3)]
    found = benchmark.measure_in_turns(cases, 3)
    assert order == [1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert [len(f) for f in found] == [3, 3, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "enormous", "random": True}, "'enormous' is not an official shape"),
        ({"tokens": 300}, "--tokens 300: a window has room for 224"),
        ({"model": "short"}, "20 s"),
    ],
)
def test_what_cannot_be_measured(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Such as windows of 20 s."""
    name, dims = changes.get("model", "plain"), tiny_dims(width=8, multilingual=False)
    if name == "short":
        dims = replace(dims, n_audio_ctx=1000)
    state = random_state(dims, seed=0)
    if name in ("plain", "short"):
        changes = changes | {"model": str(save_openai(tmp_path / "model.pt", dims, state))}
    asked = replace(case(tmp_path, batch=1, windows=1, tokens=1), **changes)
    with pytest.raises(OptionError, match=message):
        measure(asked)


@pytest.mark.slow
def test_a_process_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises is raised here, and its end is told."""
    with pytest.raises(OptionError, match="'enormous' is not an official shape"):
        measure_in_process(case(Path("enormous"), random=True))
    monkeypatch.setattr(benchmark, "measure", die)
    with pytest.raises(SlimWhisperError, match=r"slim, batch 2: .* memory"):
        measure_in_process(case(tmp_path))


def test_random_checkpoint() -> None:
    """Whole, the same for the same seed, and no form falls back."""
    dims = tiny_dims(width=128, heads=2)
    one, same, other = (random_checkpoint(dims, seed) for seed in (1, 1, 2))
    assert {k: tuple(t.shape) for k, t in one.state.items()} == expected_shapes(dims)
    name = "decoder.blocks.0.attn.key.weight"
    assert torch.equal(one.state[name], same.state[name])
    assert not torch.equal(one.state[name], other.state[name])
    for forms in PRESETS.values():
        assert not guarded_plan(one, forms, torch.bfloat16).fallbacks


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_is_the_rise_of_the_peak() -> None:
    memory = Memory(CPU)
    values = torch.ones(50_000_000)
    del values
    assert memory.grown() <= memory.peak()
    assert 190e6 < memory.grown() < 400e6
