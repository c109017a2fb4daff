"""docs/gpu-measured.json: what is written can be read, and what is wrong with a row is said."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.commands.gpu.measured import (
    MEASURED,
    Measured,
    MeasuredError,
    read_measured,
    write_measured,
)
from tests.support.paths import ROOT

ROW = Measured(
    *("h200", "NVIDIA H200", "2.13.0", "3.9.0", "large-v3", "slim", None, "float16"),
    batch=64,
    what="step",
    milliseconds=6.25,
)


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "gpu-measured.json"
    rows = (ROW, replace(ROW, cache_dtype="fp8", what="cross", milliseconds=1))
    write_measured(rows, path)
    assert read_measured(path) == rows
    assert [row.form for row in rows] == ["slim", "slim fp8"]
    assert len(path.read_text().splitlines()) == 2
    write_measured((), path)
    assert read_measured(path) == ()
    assert read_measured(tmp_path / "missing.json") == ()
    with pytest.raises(MeasuredError, match="milliseconds must be a number above 0, not -1"):
        write_measured([replace(ROW, milliseconds=-1)], path)


def test_the_projects_own_measurements_are_found_and_read() -> None:
    assert MEASURED == ROOT / "docs" / "gpu-measured.json"
    assert len(read_measured()) == len(json.loads(MEASURED.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "row 1: batch must be an integer above 0, not 0"),
        ({"batch": True}, "batch must be an integer"),
        ({"what": ["step"]}, "what must be one of step, cross"),
        ({"cache_dtype": "int8"}, "cache_dtype must be null or \"fp8\", not 'int8'"),
        ({"gpu": ""}, "gpu must be a text, not ''"),
        ({"milliseconds": "6"}, "milliseconds must be a number above 0"),
        ({"milliseconds": float("nan")}, "milliseconds must be a number above 0"),
        ({"speed": 1}, "a row must be an object with just device, gpu,"),
    ],
)
def test_refuses_a_row(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**asdict(ROW), **change}]))
    with pytest.raises(MeasuredError, match=re.escape(message)):
        read_measured(path)


@pytest.mark.parametrize(
    ("text", "message"), [("[", "cannot be read as JSON"), ("{}", "must be a list of rows")]
)
def test_refuses_a_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(MeasuredError, match=message):
        read_measured(path)
