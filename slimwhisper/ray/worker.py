"""The actor of a job, in a process of Ray: a model and its engine, which also writes outputs."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from logging.handlers import BufferingHandler
from typing import Any

from slimwhisper.audio.threads import set_threads
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.files import InputFile
from slimwhisper.jobs.progress import model_facts
from slimwhisper.jobs.results.writers import RecordingResult, Write, write_result
from slimwhisper.ray.transcriber import Transcriber

logger = logging.getLogger("slimwhisper.ray")


Ready = tuple[dict[str, Any], list[str]]  # `model_facts`, and warnings


class Worker:
    """Transcribes recordings with one engine, and writes the outputs; the driver records them
    (`slimwhisper.jobs.results.writers`).

    If the engine fails, the process ends.
    """

    def __init__(
        self,
        threads: int,
        folder: str,
        make_transcriber: Callable[[], Transcriber],
        write: Write,
    ) -> None:
        """threads: as in `set_threads`. folder: of the driver, for relative paths."""
        with suppress(OSError):  # it may not exist on another host: then paths must be absolute
            os.chdir(folder)
        self._threads = threads
        self._make_transcriber, self._write = make_transcriber, write
        self._writer = ThreadPoolExecutor(1, "slimwhisper-write")

    async def load(self) -> Ready | SlimWhisperError:
        """Load the model. Returns its facts and warnings, or the error."""
        logged = BufferingHandler(1000)  # lines, at most
        logging.getLogger("slimwhisper").addHandler(logged)
        set_threads(self._threads)  # in this thread: the engine's, which it starts, has the same
        try:
            self._transcriber = self._make_transcriber()
        except Exception as error:
            return wrap_unexpected(error)
        # those about caches are in `model_facts`
        records = [r for r in logged.buffer if not r.name.startswith("slimwhisper.cache")]
        warnings = [r.getMessage() for r in records if r.levelno >= logging.WARNING]
        return model_facts(self._transcriber.model, self._transcriber.feed.slots), warnings

    async def outlive(self) -> None:
        """Never returns: the call fails when the process has died."""
        await asyncio.Event().wait()

    async def transcribe(self, recording: InputFile) -> tuple[RecordingResult, float]:
        """Transcribe a recording, and write its outputs. Any number of calls may run at the same
        time.

        Returns also the mean share of the worker's slots in use, over all its steps.
        """
        began = time.perf_counter()
        try:
            result = await self._transcriber.transcribe(recording.path)
        except Exception as error:
            logger.critical("the engine failed", exc_info=error)
            os._exit(1)
        writing = self._writer.submit(write_result, self._write, recording, result.result)
        ended = await asyncio.wrap_future(writing)
        elapsed = time.perf_counter() - began
        ended = replace(ended, seconds=result.seconds, elapsed=elapsed)
        return ended, self._transcriber.feed.counts.fill

    async def stop(self) -> None:
        """Stop writing: returns when no output is being written."""
        await asyncio.to_thread(self._writer.shutdown, cancel_futures=True)
