"""The worker of a job, in an actor of Ray Data: a model, which also writes outputs."""

import logging
import os
import pickle
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from ray.util.queue import Empty, Queue

from slimwhisper.audio.threads import Loader, set_threads
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.files import InputFile
from slimwhisper.jobs.progress import LogHandler, model_facts
from slimwhisper.jobs.writers import RecordingResult, Write, write_result
from slimwhisper.loading import load_model
from slimwhisper.types import Transcript

WAIT = 0.05  # seconds between two looks at what may be there
UNWRITTEN = 16  # results wait for the store, at most

logger = logging.getLogger("slimwhisper.ray")


class Ready(NamedTuple):
    """A model is loaded."""

    facts: dict[str, Any]  # `model_facts`
    warnings: list[str]


class Ended(NamedTuple):
    """A recording has ended."""

    number: int
    result: RecordingResult


# what a worker tells the driver; None: it starts to load the model
Message = Ready | Ended | SlimWhisperError | None


@dataclass(eq=False)
class Worker:
    """Takes recordings from a queue, transcribes them and writes the outputs; the driver records
    the results (`slimwhisper.jobs.writers`).

    If the engine fails, the process ends.
    """

    queue: Queue  # of numbers and recordings, None at its end
    folder: str  # of the driver, for relative paths
    threads: int  # as in `set_threads`
    load: dict[str, Any]  # arguments of `load_model`
    options: dict[str, Any]  # of `transcribe_many`
    write: Write
    _model: Any = None

    def __post_init__(self) -> None:
        with suppress(OSError):  # it may not exist on another host: then paths must be absolute
            os.chdir(self.folder)

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Transcribe as many recordings as the one row says; 0: until the end of the queue."""
        for message in self._messages(batch["limit"][0].as_py()):
            yield pa.table({"message": [pickle.dumps(message)]})

    def _messages(self, limit: int) -> Iterator[Message]:
        try:
            if self._model is None:
                yield None
                yield self._load()
            if self._model is not None:
                yield from self._transcribe(limit)
        except Exception as error:
            logger.critical("the engine failed", exc_info=error)
            os._exit(1)

    def _load(self) -> Message:
        warnings = deque[str](maxlen=1000)
        logging.getLogger("slimwhisper").addHandler(LogHandler(warnings.append))
        set_threads(self.threads)  # in threads that start later, too
        try:
            model = load_model(**self.load)
            if self.options["batch_size"] is None:
                slots = {"batch_size", "loaders", "allow_truncated"}
                options = {name: o for name, o in self.options.items() if name not in slots}
                self.options["batch_size"] = model.default_batch_size(**options)
        except Exception as error:
            return wrap_unexpected(error)
        self._model = model
        return Ready(model_facts(model, self.options["batch_size"]), list(warnings))

    def _transcribe(self, limit: int) -> Iterator[Message]:
        """The engine has the thread that reads for the loader, so writing does not hold it up."""
        current: dict[Any, tuple[int, InputFile, float]] = {}
        seconds: dict[Any, float] = {}

        def sources() -> Iterator[Any]:
            for number, recording in islice(pull(self.queue), limit or None):
                current[recording.path] = number, recording, time.perf_counter()
                yield recording.path

        def write(outcome: tuple[Any, Transcript | SlimWhisperError]) -> Ended:
            path, result = outcome
            number, recording, began = current.pop(path)
            ended = write_result(self.write, recording, result)
            elapsed = time.perf_counter() - began
            return Ended(number, replace(ended, seconds=seconds.pop(path, None), elapsed=elapsed))

        how = {"on_duration": seconds.__setitem__, **self.options}
        decoded = self._model.transcribe_many(sources(), **how)
        written = Loader(decoded, write, UNWRITTEN, 1)
        while (item := written.next(block=True)) is not None:
            yield item[1]


def pull(queue: Queue) -> Iterator[tuple[int, InputFile]]:
    """The recordings of a queue. It is asked again and again, as a worker that is killed while it
    waits would get one.
    """
    while True:
        try:
            item = queue.get_nowait()
        except Empty:
            time.sleep(WAIT)
        else:
            if item is None:
                return
            yield item
