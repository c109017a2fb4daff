"""The actor: a model, its engine, and the writing of outputs, in a process of Ray."""

import logging
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn

from slimwhisper.errors import SlimWhisperError, as_ours
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.marks import Written
from slimwhisper.jobs.progress import model_facts
from slimwhisper.jobs.sinks import open_sink, write_result
from slimwhisper.ray.feed import Feed, Heard
from slimwhisper.ray.metrics import EngineMetrics
from slimwhisper.ray.results import Ended, Ready, Report, Settings
from slimwhisper.types import Transcript

logger = logging.getLogger("slimwhisper.ray")

POLL_SECONDS = 1.0  # for which a poll waits for results
STOP_SECONDS = 10.0  # for outputs that are being written at the end


class Worker:
    """Transcribes what it is given, all in one engine, and writes the outputs, which the driver
    marks (`slimwhisper.jobs.sinks`).

    Its methods are called at the same time, each in a thread of its own. If the engine fails, the
    process ends: what it had is given back, as by any other death.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._dropped: set[InputFile] = set()
        self._stopping = threading.Event()
        self._writer = ThreadPoolExecutor(1, "slimwhisper-write")
        self._metrics = EngineMetrics()

    def ready(self) -> Ready | SlimWhisperError:
        """Load the model. Returns what it is, or the error."""
        s = self._settings
        warnings = _Warnings()
        logging.getLogger("slimwhisper").addHandler(warnings)
        with suppress(OSError):  # on another host: then paths have to be absolute
            os.chdir(s.folder)
        try:
            self._sink = open_sink(s.output_dir, s.output_format, s.layout)
            import torch

            from slimwhisper.api import load_model

            if s.threads:
                torch.set_num_threads(s.threads)
            model = load_model(**s.load)
            slots = s.batch_size or model.default_batch_size(**s.options)
            self._feed = Feed(
                model,
                batch_size=slots,
                allow_truncated=s.allow_truncated,
                loaders=s.loaders,
                **s.options,
            )
        except Exception as error:
            return _plain(as_ours(error))
        return Ready(model_facts(model, slots), warnings.lines)

    def submit(self, recordings: Sequence[InputFile]) -> None:
        """Transcribe these too."""
        for recording in recordings:
            try:
                future = self._feed.submit(recording.path)
            except RuntimeError as error:
                _die(error)
            future.add_done_callback(partial(self._heard, recording))

    def drop(self, recording: InputFile) -> None:
        """Do not write this one: another worker has."""
        self._dropped.add(recording)

    def poll(self) -> Report:
        """What has ended since the last call; waits a moment if there is nothing."""
        ended = []
        with suppress(queue.Empty):
            ended.append(self._ended.get(timeout=POLL_SECONDS))
            while True:
                ended.append(self._ended.get_nowait())
        self._metrics.update(self._feed.counts, self._feed.waiting)
        return Report(ended, replace(self._feed.counts))

    def stop(self) -> None:
        """Write nothing more: returns when nothing is being written."""
        self._stopping.set()
        self._writer.shutdown(cancel_futures=True)

    def _heard(self, recording: InputFile, future: "Future[Heard]") -> None:
        """On the engine's thread: hand a result to the writing thread."""
        if self._stopping.is_set():
            return
        if (error := future.exception()) is not None:
            _die(error)
        with suppress(RuntimeError):  # stopped meanwhile
            self._writer.submit(self._write, recording, future.result())

    def _write(self, recording: InputFile, heard: Heard) -> None:
        if recording in self._dropped:
            self._dropped.discard(recording)
            return
        try:
            written = write_result(self._sink, recording, heard.result)
        except Exception as error:
            written = Written("unwritten", as_ours(error))
        result = written.result
        if isinstance(result, SlimWhisperError):
            written = Written(written.status, _plain(result))
        elif not self._settings.with_text:
            written = replace(written, result=Transcript("", [], result.language))
        self._ended.put(Ended(recording, written, heard.seconds))


def _die(error: BaseException) -> NoReturn:
    """The engine has failed: so does the process."""
    logger.critical("the engine failed", exc_info=error)
    os._exit(1)


class _Warnings(logging.Handler):
    """Keeps the library's warnings, except those about caches, which `model_facts` has."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("slimwhisper.cache"):
            self.lines.append(record.getMessage())


def _plain(error: SlimWhisperError) -> SlimWhisperError:
    """The error without its cause and its place, which may not be sent to another process."""
    return type(error)(*error.args)
