"""Rows of Ray Data: recordings in, `SCHEMA` out.

A row in has one of these columns, of which the first that is not null counts:

- `samples`: a list of numbers, mono, with `sample_rate` (Hz; 16,000 if the column is missing);
- `bytes`: a file's content;
- `path`: where a file is.

So `ray.data.read_binary_files(..., include_paths=True)` and `ray.data.from_items([{"path": ...}])`
give such rows. A row out has the columns of `SCHEMA` in place of `samples` and `bytes`; all its
other columns stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from slimwhisper.audio.load import AudioSource
from slimwhisper.errors import AudioError
from slimwhisper.ray.feed import Heard
from slimwhisper.types import SAMPLE_RATE, Transcript

SAMPLES, RATE, BYTES, PATH = "samples", "sample_rate", "bytes", "path"
PAYLOAD = (SAMPLES, RATE, BYTES)  # columns that do not leave

WORD = pa.struct(
    [("word", pa.string()), *((name, pa.float64()) for name in ("start", "end", "probability"))]
)
SEGMENT = pa.struct(
    [
        ("id", pa.int32()),
        ("seek", pa.int64()),  # mel frames
        ("start", pa.float64()),  # seconds
        ("end", pa.float64()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("temperature", pa.float64()),
        ("avg_logprob", pa.float64()),
        ("compression_ratio", pa.float64()),
        ("no_speech_prob", pa.float64()),
    ]
)
# null where a recording failed, except `error` and, if it was read, `seconds`
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("language", pa.string()),  # a code such as "de"
        ("segments", pa.list_(SEGMENT)),
        ("words", pa.list_(WORD)),  # of all segments; null without word_timestamps
        ("seconds", pa.float64()),  # of audio
        ("error", pa.string()),  # null where all went well
    ]
)


def as_table(batch: Any) -> pa.Table:
    """A batch as Ray Data passes it: a table already, or columns by their names."""
    if isinstance(batch, pa.Table):
        return batch
    return pa.table({name: _column(values) for name, values in batch.items()})


def _column(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim > 1:  # samples of the same length
        return list(values)
    return pa.array(list(values)) if not isinstance(values, np.ndarray) else pa.array(values)


def source_of(row: Mapping[str, Any]) -> tuple[AudioSource, int]:
    """A row's recording, and the rate of its samples. Raises AudioError."""
    samples = row.get(SAMPLES)
    if samples is not None:
        rate = row.get(RATE)
        return np.asarray(samples, np.float32), SAMPLE_RATE if rate is None else int(rate)
    for name in (BYTES, PATH):
        if row.get(name) is not None:
            return row[name], SAMPLE_RATE
    raise AudioError(f"the row has no recording: give one of {SAMPLES}, {BYTES}, {PATH}")


def with_results(table: pa.Table, heard: Sequence[Heard]) -> pa.Table:
    """The table with the columns of `SCHEMA`, a result for each row."""
    kept = table.select([c for c in table.column_names if c not in (*PAYLOAD, *SCHEMA.names)])
    rows = pa.Table.from_pylist([result_row(h) for h in heard], SCHEMA)
    for name in SCHEMA.names:
        kept = kept.append_column(SCHEMA.field(name), rows.column(name))
    return kept


def result_row(heard: Heard) -> dict[str, Any]:
    """A result as a row of `SCHEMA`."""
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    row["seconds"] = heard.seconds
    if not isinstance(heard.result, Transcript):
        row["error"] = str(heard.result)
        return row
    transcript = heard.result
    segments = [asdict(segment) for segment in transcript.segments]
    words = [segment.pop("words") for segment in segments]
    row |= {"text": transcript.text, "language": transcript.language, "segments": segments}
    if any(w is not None for w in words):
        row["words"] = [word for found in words for word in found or ()]
    return row
