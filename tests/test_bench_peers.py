"""What the tables of bench/peers.py say, and that its engines say the same."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimwhisper.checkpoint.load import Checkpoint
from tests.support.bench import BENCH, imported, last_line, output
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.paths import SAMPLES


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with imported(monkeypatch) as load:
        yield load


@pytest.fixture
def summary(bench: Any) -> Any:
    return bench("peers_summary")


def case(summary: Any, engine: str, dtype: str, batch: int = 8, **more: Any) -> Any:
    values = {"model": "tiny", "files": 8, "tokens": 50, "threads": 2, "audio": None} | more
    return summary.Case(engine=engine, dtype=dtype, batch=batch, **values)


def rounds(*speeds: float, tokens: int = 50, **more: Any) -> dict[int, dict[str, Any]]:
    values = dict.fromkeys(("seconds_spent", "first_text_seconds"), 1.0)
    values |= {"memory_mb": 1.0, "peak_mb": 1.0, "texts": None, "sampled": 8 * tokens} | more
    count = {"fewest_tokens": tokens, "most_tokens": tokens}
    return {n: {"hours_an_hour": speed, **values, **count} for n, speed in enumerate(speeds)}


def ratios(summary: Any, results: Any) -> dict[tuple[str, int], tuple[str, list[float]]]:
    rows = summary.summaries(results)
    return {(r["peer"], r["batch"]): (r["best"], r["ratios"]) for r in rows if r["ratios"]}


def test_the_best_engine_of_the_group_is_compared_with(summary: Any) -> None:
    results = {
        case(summary, "slimwhisper", "float32"): rounds(60, 90, 80),
        case(summary, "faster-whisper", "float32"): rounds(10, 10, 10),
        case(summary, "faster-whisper-mkl", "float32"): rounds(40, 30, 20),
        case(summary, "transformers", "bfloat16"): rounds(20, 20, 20),
        case(summary, "slimwhisper", "int8"): rounds(100),
        case(summary, "faster-whisper", "int8"): rounds(25, 25),
        # of another length, shape, batch: not compared
        case(summary, "openvino", "int8", seconds=3): rounds(500),
        case(summary, "openvino", "int8", model="base"): rounds(500),
        case(summary, "openvino", "int8", batch=1): rounds(500),
        # of a job, with as many windows at a time as it is best with
        case(summary, "slimwhisper", "int8", batch=16, job="long"): rounds(100),
        case(summary, "faster-whisper", "int8", batch=1, job="long"): rounds(40),
        case(summary, "faster-whisper", "int8", batch=16, job="long"): rounds(20),
    }
    assert ratios(summary, results) == {
        ("slimwhisper float32", 8): ("faster-whisper-mkl float32", [1.5, 3.0, 4.0]),
        ("slimwhisper int8", 8): ("faster-whisper int8", [4.0]),
        ("slimwhisper int8", 16): ("faster-whisper int8, 1 at a time", [2.5]),
    }


def test_an_engine_without_batches_counts_with_fewer_windows_at_a_time(summary: Any) -> None:
    results = {
        case(summary, "slimwhisper", "int8"): rounds(60),
        case(summary, "whisper.cpp", "q8_0"): rounds(20),
        case(summary, "whisper.cpp", "q5_0", batch=1): rounds(30),
        case(summary, "whisper.cpp", "q5_0", batch=64): rounds(500),
    }
    assert ratios(summary, results) == {
        ("slimwhisper int8", 8): ("whisper.cpp q5_0, 1 at a time", [2.0])
    }


def test_other_counts_of_tokens_are_marked_and_not_compared(summary: Any) -> None:
    results = {
        case(summary, "slimwhisper", "float32"): rounds(60),
        case(summary, "faster-whisper", "float32"): rounds(50, tokens=48),
        case(summary, "transformers", "float32"): rounds(40, tokens=51),
        case(summary, "openai-whisper", "float32", batch=1): rounds(20),
    }
    assert ratios(summary, results) == {("slimwhisper float32", 8): ("transformers float32", [1.5])}
    table = summary.table(summary.summaries(results)).splitlines()[2:]
    marked = [line.split(" | ")[4] for line in table if summary.OTHER_COUNT in line]
    assert marked == ["faster-whisper float32", "transformers float32"]


def test_words_are_compared_with_ours_in_float32(summary: Any) -> None:
    by = case(summary, "faster-whisper", "float32", audio="talks")
    results = {
        by: rounds(1, texts=["It's one.", "Two three!"]),
        case(summary, "slimwhisper", "float32", audio="talks"): rounds(
            1, texts=["it's", "two tea"]
        ),
    }
    rows = summary.summaries(results)
    assert [(row["words"], row["differences"]) for row in rows] == [(5, 2), (4, 0)]


def test_a_jobs_files_are_the_same_each_time(bench: Any, summary: Any, tmp_path: Path) -> None:
    jobs, made = bench("peer_jobs"), []
    some = case(summary, "slimwhisper", "float32", audio=str(SAMPLES), files=3, seconds=8, job="x")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files, first = jobs.files_of(some, tmp_path / name)
        made.append([Path(file).read_bytes() for file in (*files, *first)])
        assert sorted(map(jobs.seconds_of, files)) == [2, 4, 8] and jobs.seconds_of(first[0]) == 2
    assert made[0] == made[1] and len(set(made[0])) == 4


def test_means(summary: Any) -> None:
    """Of the medians, a group each; a row without another engine has no ratio."""
    results = {
        case(summary, "slimwhisper", "float32", 1): rounds(20, 20, 100),
        case(summary, "transformers", "float32", 1): rounds(10, 10, 10),
        case(summary, "slimwhisper", "float32", 8): rounds(80),
        case(summary, "transformers", "float32", 8): rounds(10),
        case(summary, "slimwhisper", "float32", 64): rounds(80),
        case(summary, "slimwhisper", "int8", 1): rounds(30),
        case(summary, "whisper.cpp", "q8_0", 1): rounds(10),
    }
    means = summary.geometric_means(summary.summaries(results))
    assert [(m["group"], m["peer"], m["rows"]) for m in means] == [
        ("float32", "slimwhisper float32", 2),
        ("int8", "slimwhisper int8", 1),
    ]
    assert [m["ratio"] for m in means] == pytest.approx([4.0, 3.0])


def test_a_failure_is_a_line_with_its_reason(summary: Any) -> None:
    results = {
        case(summary, "slimwhisper", "float32"): rounds(60),
        case(summary, "transformers", "float32"): {-1: summary.failure("ValueError: no such op")},
    }
    text = summary.tables(summary.summaries(results))
    assert "- tiny, 29 s, 8 at a time, transformers float32: ValueError: no such op" in text
    assert text.count("transformers") == 1


def test_quantised_weights_are_whisper_cpps(bench: Any, tmp_path: Path) -> None:
    """Back in float they are near; the file's header says how they are stored."""
    quants = pytest.importorskip("gguf.quants", reason="needs gguf")
    summary, whisper_cpp = bench("peers_summary"), bench("peer_engines.whisper_cpp")
    dims = tiny_dims(multilingual=True, text_layers=1)
    weights = Checkpoint("random", dims, random_state(dims, seed=1))
    path = tmp_path / "ggml.bin"
    sizes = {}
    for dtype, least in (("float16", 1e-3), ("q8_0", 0.02), ("q5_0", 0.2)):
        whisper_cpp.save_ggml(weights, path, case(summary, "whisper.cpp", dtype))
        content = path.read_bytes()
        (kind,) = struct.unpack_from("<i", content, 44)
        assert kind == {"float16": 1, "q8_0": 2007, "q5_0": 2008}[dtype]
        name = b"decoder.blocks.0.mlp.0.weight"
        at = content.index(name)
        n_dims, length, stored = struct.unpack_from("<3i", content, at - 20)
        tensor = weights.state[name.decode()]
        assert (n_dims, length) == (2, len(name))
        assert struct.unpack_from("<2i", content, at - 8) == (tensor.shape[1], tensor.shape[0])
        kind = quants.GGMLQuantizationType(stored)
        data = np.frombuffer(content, np.uint8, offset=at + length)
        rows = quants.quant_shape_to_byte_shape(tuple(tensor.shape), kind)
        data = data[: int(np.prod(rows))].reshape(rows)
        found = quants.dequantize(data, kind)
        assert np.abs(found - tensor.numpy()).max() < least * tensor.abs().max().item()
        sizes[dtype] = len(content)
    assert sizes["float16"] > sizes["q8_0"] > sizes["q5_0"]


@pytest.mark.slow
def test_engines_that_are_installed_everywhere(tmp_path: Path) -> None:
    """They must say the same; a second run measures nothing, and a file's tables are the same."""
    file = tmp_path / "rows.jsonl"
    command = ["peers.py", "--model", "digits", "--folder", str(SAMPLES), "--files", "2"]
    command += ["--engines", "openai-whisper,slimwhisper", "--dtypes", "float32"]
    command += ["--jobs", "folder,long", "--seconds", "5", "--rounds", "1", "--results", str(file)]
    peers = ["openai-whisper", "slimwhisper float32"] * 2 + ["slimwhisper float32"]
    printed = output(*command)
    found = json.loads(printed.splitlines()[-1])["rows"]
    assert [row["peer"] for row in found] == peers
    assert all(row["differences"] == 0 < row["words"] and row["sampled"] > 5 for row in found)
    assert found[1]["best"].startswith("openai-whisper") and len(found[1]["ratios"]) == 1
    assert last_line(*command)["rows"] == found, "measured once"
    assert len(file.read_text().splitlines()) == len(peers)
    assert printed.startswith(output("peers.py", "--table", str(file)))


@pytest.mark.slow
def test_short_utterances_and_an_engine_that_fails(tmp_path: Path) -> None:
    """The others are measured; the reason is in the results and in the table."""
    broken = tmp_path / "broken" / "transformers"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, str(BENCH / "peers.py"), "--seconds", "3", "--tokens", "5"]
    command += ["--engines", "transformers,slimwhisper", "--dtypes", "float32"]
    command += ["--batches", "1", "--files", "1", "--rounds", "1", "--results", str(file)]
    environment = os.environ | {"PYTHONPATH": str(broken.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "failed: tiny, transformers" in done.stderr
    assert "RuntimeError: broken on purpose" in done.stdout
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum("error" in row for row in rows) == 1
    measured = [row for row in rows if "error" not in row]
    assert [row["engine"] for row in measured] == ["slimwhisper"]
    assert all(row["fewest_tokens"] == row["most_tokens"] == 5 for row in measured)
    assert all(row["seconds"] == 3 for row in measured)


@pytest.mark.slow
def test_beside_other_programs() -> None:
    flags = "--dtypes int8 --tokens 3 --seconds 1 --files 1 --rounds 1 --loads 0,1".split()
    rows = last_line("busy.py", *flags)["rows"]
    assert {row["load"] for row in rows} >= {"0 others", "1 others"}
    assert all(row["engine"] == "slimwhisper int8" and row["seconds"][0] > 0 for row in rows)
