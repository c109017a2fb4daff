"""`Transcriber`: a model in a worker of Ray, for `Dataset.map_batches` and for actors."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa

from slimwhisper.api import load_model
from slimwhisper.audio.load import AudioSource
from slimwhisper.errors import SlimWhisperError
from slimwhisper.ray.feed import Feed, FeedResult
from slimwhisper.ray.metrics import EngineMetrics
from slimwhisper.ray.rows import as_table, source_of, with_results
from slimwhisper.types import SAMPLE_RATE


class Transcriber:
    """Transcribes rows (`slimwhisper.ray.rows`) with one engine.

        ray.data.read_parquet("in").map_batches(
            slimwhisper.ray.Transcriber,
            fn_constructor_kwargs={"model": "turbo"},
            batch_size=64, num_gpus=1, concurrency=8,
        ).write_parquet("out")

    Batches of rows overlap in the engine: the next ones fill the slots that the last rows of one
    leave, and a batch is yielded when all its rows are done. Any number of calls may run at once.
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

        Arguments:
            load: more arguments of `load_model`, such as {"dtype": "bfloat16"}.
            slots: windows decoded together, `transcribe_many`'s batch_size.
            options: fields of `slimwhisper.Options`, and `allow_truncated` and `loaders` as of
                `transcribe_many`.
        Raises what `load_model` raises.
        """
        self.model = load_model(model, **(load or {}))
        self.feed = Feed(self.model, slots, **options)
        self._metrics = EngineMetrics()

    async def __call__(self, batch: Any) -> AsyncIterator[pa.Table]:
        """A batch, as columns or as a table -> a table with the columns of `SCHEMA`."""
        table = as_table(batch)
        results = await asyncio.gather(*map(self._row, table.to_pylist()))
        yield with_results(table, results)

    async def transcribe(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> FeedResult:
        """One recording: a path or URI, a remote file, a file's bytes, or samples at `sample_rate`
        Hz.

        A recording that fails is a `FeedResult` with its error; raises only what ends the engine.
        """
        try:
            future = await asyncio.to_thread(self.feed.submit, source, sample_rate)
        except SlimWhisperError as error:  # samples that are not audio, or no such kind of URI
            return FeedResult(error, None)
        result = await asyncio.wrap_future(future)
        self._metrics.update(self.feed.counts, self.feed.waiting)
        return result

    async def _row(self, row: Mapping[str, Any]) -> FeedResult:
        try:
            source, rate = source_of(row)
        except SlimWhisperError as error:
            return FeedResult(error, None)
        return await self.transcribe(source, rate)

    def close(self) -> None:
        """End the engine when it has done all that was given to it."""
        self.feed.close()
