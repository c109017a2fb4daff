"""Rows of Ray Data, in and out, with a stand-in for Ray."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from slimwhisper.audio.load import load_audio
from slimwhisper.errors import OptionError
from tests.support.paths import BROKEN
from tests.support.spoken import SAMPLES

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")

DOOR = SAMPLES / "door-code.mp3"
TEXT = "four zero seven seven".split()
MODULE = "slimwhisper.ray.transcriber"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    context = SimpleNamespace(worker=SimpleNamespace(mode=1), get_assigned_resources=dict)
    ray = MagicMock(is_initialized=lambda: True, get_runtime_context=lambda: context, WORKER_MODE=1)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield import_module(MODULE)
    sys.modules.pop(MODULE, None)


def transcribed(transcriber: Any, *batches: Any) -> list[Any]:
    """The tables of several calls that run at the same time."""

    async def one(batch: Any) -> Any:
        (table,) = [table async for table in transcriber(batch)]
        return table

    async def everything() -> list[Any]:
        return await asyncio.gather(*map(one, batches))

    return asyncio.run(everything())


def test_rows(module: ModuleType) -> None:
    """The same path twice, bytes, samples, a URI, and what cannot be read; and a batch of columns
    at the same time.
    """
    samples = load_audio(DOOR)
    rows: list[dict[str, Any]] = [
        {"path": str(DOOR), "n": 1},
        {"path": str(DOOR), "samples": None, "text": "old"},
        {"path": "unread", "bytes": DOOR.read_bytes()},
        {"samples": samples.tolist(), "path": "unread"},
        {"samples": samples[::2].tolist(), "sample_rate": 8_000},
        {"path": f"file://{DOOR}"},
        {"path": str(BROKEN)},
        {"n": 2},
        {"path": "nowhere://x"},
    ]
    names = dict.fromkeys(("path", "bytes", "samples", "sample_rate", "n", "text"))
    table = pa.Table.from_pylist([names | row for row in rows])
    columns = {"path": np.array([str(DOOR)] * 3, object), "n": np.arange(3)}
    transcriber = module.Transcriber("digits", load={"device": "cpu"}, slots=4)
    wrong = {"path": [3], "bytes": [None]}, {"bytes": ["abc"]}, {"samples": [["a"]]}, {"path": [""]}
    found, more, *others = transcribed(transcriber, table, columns, *wrong)
    assert found.column_names == more.column_names == ["path", "n", *module.SCHEMA.names]
    good, (broken, nothing, unknown) = found.to_pylist()[:6], found.to_pylist()[6:]
    for row in [*good, *more.to_pylist()]:
        assert row["text"].split() == TEXT and row["error"] is None and row["language"] == "en"
        assert row["seconds"] == pytest.approx(len(samples) / 16_000, abs=0.01)
        assert row["segments"][0]["tokens"]
    assert "not audio" in broken["error"] and broken["text"] is broken["segments"] is None
    assert "samples, bytes or path" in nothing["error"] and nothing["n"] == 2
    assert "nowhere://x: unknown protocol" in unknown["error"]
    assert all("the row has no recording" in other["error"][0].as_py() for other in others)
    # parts of one data set fit together, also such of silence
    (silence,) = transcribed(transcriber, {"samples": np.zeros((1, 16_000))})
    assert silence.schema.equals(found.select(silence.column_names).schema)


def test_samples_keep_their_channels(module: ModuleType) -> None:
    transcriber = module.Transcriber("digits", load={"device": "cpu"}, channels="split")
    door = load_audio(DOOR)
    both = np.stack([door, np.concatenate([door[8_000:], np.zeros(8_000, np.float32)])])
    two, mono = transcribed(transcriber, {"samples": [both.tolist()]}, {"samples": [door]})
    speakers = {segment["speaker"] for segment in two.to_pylist()[0]["segments"]}
    assert speakers == {"left", "right"}
    assert "has one channel" in mono.to_pylist()[0]["error"]
    with pytest.raises(OptionError):
        module.Transcriber("digits", load={"device": "cpu"}, beam_size=0)


def test_actors_that_share_a_gpu(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps to its part of the memory before it has an engine."""
    done: list[object] = []
    model = SimpleNamespace(
        device=torch.device("cuda", 0), transcribe_many=lambda *_, **__: done.append("engine")
    )
    monkeypatch.setattr(module, "load_model", lambda _: model)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: done.append(share)
    )
    context = sys.modules["ray"].get_runtime_context()
    for resources in ({"GPU": 0.5}, {"GPU": 1.0}, {}):
        context.get_assigned_resources = lambda resources=resources: resources
        module.Transcriber()
    context.worker.mode = 0  # a driver has no resources of its own
    module.Transcriber()
    assert done == [0.5, *["engine"] * 4]
