"""Converts rows of Ray Data: recordings in, columns of `SCHEMA` out.

An input row has one of these columns, of which the first that is not null counts:

- `samples`: a list of numbers, mono, with `sample_rate` (Hz; 16,000 if the column is missing);
- `bytes`: a file's content;
- `path`: the path or URI of a file.

So `ray.data.read_binary_files(..., include_paths=True)` and `ray.data.from_items([{"path": ...}])`
give such rows. An output row has the columns of `SCHEMA` instead of `samples` and `bytes`; all its
other columns stay.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from slimwhisper.audio.load import AudioSource
from slimwhisper.errors import AudioError
from slimwhisper.ray.engine_feed import FeedResult
from slimwhisper.storage.tables import schema, text_columns
from slimwhisper.types import SAMPLE_RATE, Transcript

SAMPLES, RATE, BYTES, PATH = "samples", "sample_rate", "bytes", "path"
PAYLOAD = (SAMPLES, RATE, BYTES)  # columns that output rows do not have

# the columns of a job's table (docs/storage.md) with the result of a recording; null where it
# failed, except `error` and, if it was read, `seconds`
SCHEMA = pa.schema(
    [schema().field(name) for name in ("text", "language", "segments", "words", "seconds", "error")]
)


def as_table(batch: Any) -> pa.Table:
    """A batch as Ray Data passes it: a table already, or columns by their names."""
    if isinstance(batch, pa.Table):
        return batch
    return pa.table({name: pa.array(list(values)) for name, values in batch.items()})


def source_of(row: Mapping[str, Any]) -> tuple[AudioSource, int]:
    """A row's recording, and the rate of its samples. Raises AudioError."""
    samples = row.get(SAMPLES)
    if samples is not None:
        rate = row.get(RATE)
        return np.asarray(samples, np.float32), SAMPLE_RATE if rate is None else int(rate)
    for name in (BYTES, PATH):
        if row.get(name) is not None:
            return row[name], SAMPLE_RATE
    raise AudioError(f"the row has no recording; give one of {SAMPLES}, {BYTES} or {PATH}")


def with_results(table: pa.Table, results: Sequence[FeedResult]) -> pa.Table:
    """The table with the columns of `SCHEMA`, a result for each row."""
    columns = table.select([c for c in table.column_names if c not in (*PAYLOAD, *SCHEMA.names)])
    rows = pa.Table.from_pylist([result_row(h) for h in results], SCHEMA)
    for name in SCHEMA.names:
        columns = columns.append_column(SCHEMA.field(name), rows.column(name))
    return columns


def result_row(result: FeedResult) -> dict[str, Any]:
    """A result as a row of `SCHEMA`."""
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names) | {"seconds": result.seconds}
    if isinstance(result.result, Transcript):
        return row | text_columns(result.result)
    return row | {"error": str(result.result)}
