"""Defines `Transcriber`, a model in a worker of Ray, for `Dataset.map_batches` and for actors."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa
import ray
import torch

from slimwhisper.audio.load import AudioSource
from slimwhisper.errors import SlimWhisperError
from slimwhisper.loading import load_model
from slimwhisper.ray.dataset_rows import as_table, source_of, with_results
from slimwhisper.ray.engine_feed import EngineFeed, FeedResult
from slimwhisper.ray.metrics import EngineMetrics
from slimwhisper.types import SAMPLE_RATE


class Transcriber:
    """Transcribes rows (`slimwhisper.ray.dataset_rows`) with one engine.

        ray.data.read_parquet("in").map_batches(
            slimwhisper.ray.Transcriber,
            fn_constructor_kwargs={"model": "turbo"},
            batch_size=64, num_gpus=1, concurrency=8,
        ).write_parquet("out")

    Batches of rows overlap in the engine: while the last rows of one are decoded, rows of the next
    ones fill the free slots. A batch is yielded when all its rows are done. Any number of calls may
    run at the same time. With `num_gpus=0.5` an actor takes half of the GPU's memory, and so on.
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
            options: fields of `slimwhisper.Options`, and `allow_truncated` and `loaders`
                as of `transcribe_many`.
        Raises the errors of `load_model`.
        """
        self.model = load_model(model, **(load or {}))
        device = self.model.device
        if device.type == "cuda" and (share := gpu_share()) < 1:
            torch.cuda.set_per_process_memory_fraction(share, device)
        self.feed = EngineFeed(self.model, slots, **options)
        self._metrics = EngineMetrics()

    async def __call__(self, batch: Any) -> AsyncIterator[pa.Table]:
        """A batch, as columns or as a table -> a table with the columns of `SCHEMA`."""
        table = as_table(batch)
        results = await asyncio.gather(*map(self._row, table.to_pylist()))
        yield with_results(table, results)

    async def transcribe(self, source: AudioSource, sample_rate: int = SAMPLE_RATE) -> FeedResult:
        """One recording: a path or URI, a remote file, a file's bytes, or samples at `sample_rate`
        Hz.

        A recording that fails gives a `FeedResult` with its error; only an error that ends the
        engine is raised.
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
        """End the engine after all submitted recordings."""
        self.feed.close()


def gpu_share() -> float:
    """The part of a GPU that Ray reserves for this worker; 1 outside of workers."""
    if not ray.is_initialized():
        return 1.0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return 1.0
    return float(context.get_assigned_resources().get("GPU", 1.0))
