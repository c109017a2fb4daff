"""Defines `Transcriber`, a model in a worker of Ray, for `Dataset.map_batches`.

An input row has one of these columns, of which the first that is not null counts:

- `samples`: a list of numbers, mono, with `sample_rate` (Hz; 16,000 if the column is missing);
- `bytes`: a file's content;
- `path`: the path or URI of a file.

So `ray.data.read_binary_files(..., include_paths=True)` and `ray.data.from_items([{"path": ...}])`
give such rows. An output row has the columns of `SCHEMA` instead of `samples` and `bytes`; all its
other columns stay.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch

from slimwhisper.audio.load import AudioSource, as_waveform, load_channels
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.files import is_uri, library_errors
from slimwhisper.loading import load_model
from slimwhisper.storage.stores import StoredFile
from slimwhisper.storage.tables import schema, text_columns
from slimwhisper.types import SAMPLE_RATE, Transcript

SAMPLES, RATE, BYTES, PATH = "samples", "sample_rate", "bytes", "path"
NOTHING = "the row has no recording", f"give one of {SAMPLES}, {BYTES} or {PATH}"

# the columns of a job's table (docs/guides/scale.md) with the result of a recording; null where
# it failed, except `error` and, if it was read, `seconds`
COLUMNS = ("text", "language", "segments", "words", "seconds", "error")
SCHEMA = pa.schema([schema().field(name) for name in COLUMNS])


class Transcriber:
    """A model in a worker of Ray, which transcribes the rows of a data set.

    The module says which columns the rows have. Batches of rows overlap in the engine: while the
    last rows of one are decoded, rows of the next ones fill the free slots. A batch is yielded when
    all its rows are done. Any number of calls may run at the same time. With `num_gpus=0.5` a
    worker takes half of the GPU's memory, and so on.

    Examples:
        >>> ray.data.read_parquet("in").map_batches(
        ...     slimwhisper.ray.Transcriber,
        ...     fn_constructor_kwargs={"model": "turbo"},
        ...     batch_size=64, num_gpus=1, compute=ray.data.ActorPoolStrategy(size=8),
        ... ).write_parquet("out")
    """

    def __init__(
        self,
        model: str = "turbo",
        *,
        load: Mapping[str, Any] | None = None,
        slots: int | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: The name of the model, as for `load_model`.
            load: More arguments of `load_model`, such as {"dtype": "bfloat16"}.
            slots: How many windows are decoded together: the `batch_size` of `transcribe_many`.
            **options: The fields of `slimwhisper.Options`, and the arguments `allow_truncated` and
                `loaders` of `transcribe_many`.

        Raises:
            CheckpointError: When the model cannot be found, downloaded or loaded.
            CacheError: When a form of its cache cannot be used.
            OptionError: When an argument or an option has an invalid value.
            DependencyError: When an option needs a package that is not installed.
        """
        self.model = load_model(model, **(load or {}))
        device = self.model.device
        if device.type == "cuda" and (share := gpu_share()) < 1:
            torch.cuda.set_per_process_memory_fraction(share, device)
        self._options = {"batch_size": slots, **options}
        self.model.transcribe_many((), **self._options)  # checks them

    async def __call__(self, batch: Any) -> AsyncIterator[pa.Table]:
        """Transcribe a batch of rows.

        Args:
            batch: The rows, as columns or as a table.

        Yields:
            One table with the columns of `SCHEMA`.
        """
        if not isinstance(batch, pa.Table):
            batch = pa.table({name: pa.array(list(values)) for name, values in batch.items()})
        yield await asyncio.to_thread(self._transcribe, batch)

    def _transcribe(self, table: pa.Table) -> pa.Table:
        results: list[dict[str, Any]] = []
        rows: dict[int, dict[str, Any]] = {}  # by id of the source, of which each row has its own
        sources, split = [], self._options.get("channels") is not None
        for row in table.to_pylist():
            results.append(dict.fromkeys(SCHEMA.names))
            try:
                with library_errors(AudioError, *NOTHING):  # of values of other types
                    sources.append(source_of(row, split=split))
                rows[id(sources[-1])] = results[-1]
            except SlimWhisperError as error:
                results[-1]["error"] = str(error)

        def on_duration(source: AudioSource, seconds: float) -> None:
            rows[id(source)]["seconds"] = seconds

        options = {"on_duration": on_duration, **self._options}
        for source, result in self.model.transcribe_many(iter(sources), **options):
            if isinstance(result, Transcript):
                rows[id(source)] |= text_columns(result)
            else:
                rows[id(source)]["error"] = str(result)
        replaced = (SAMPLES, RATE, BYTES, *SCHEMA.names)
        table = table.select([name for name in table.column_names if name not in replaced])
        found = pa.Table.from_pylist(results, SCHEMA)
        for field in SCHEMA:
            table = table.append_column(field, found.column(field.name))
        return table


def source_of(row: Mapping[str, Any], *, split: bool) -> AudioSource:
    """Make the recording of a row, as a new object.

    Args:
        row: The row.
        split: Whether samples keep their channels.

    Returns:
        The recording.

    Raises:
        AudioError: When the row has no recording, or its samples are not audio.
        OptionError: When a URI is of a kind that cannot be read.
        DependencyError: When a package to read a URI is not installed.
    """
    if (samples := row.get(SAMPLES)) is not None:
        samples = np.asarray(samples, np.float32)
        rate = SAMPLE_RATE if row.get(RATE) is None else int(row[RATE])
        if not split:
            return as_waveform(samples, sample_rate=rate)[:]  # a view
        channels = load_channels(samples, sample_rate=rate).values()
        return np.stack([channel.read(0, len(channel)) for channel in channels])
    if (data := row.get(BYTES)) is not None:
        return io.BytesIO(data)
    if path := row.get(PATH):
        return StoredFile.at(path) if is_uri(path) else Path(path)
    raise AudioError("; ".join(NOTHING))


def gpu_share() -> float:
    """Return the part of a GPU that Ray reserves for this worker. It is 1 outside of workers.

    Returns:
        The part, from 0 to 1.
    """
    context = ray.get_runtime_context() if ray.is_initialized() else None
    if context is None or context.worker.mode != ray.WORKER_MODE:
        return 1.0
    return float(context.get_assigned_resources().get("GPU", 1.0))
