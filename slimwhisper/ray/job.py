"""Runs `transcribe --engine ray`: a job whose recordings are decoded by workers of Ray Data.

The rows of the data set are shifts: in each, a worker takes recordings from a queue until its end,
and what it has transcribed are rows again. A shift whose worker has died is not repeated; Ray
restarts the worker for the next one. What it had is missing then, and tried once more, each alone.

A worker has a model in an actor of Ray Data, and writes the outputs itself.
"""

import argparse
import logging
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayError
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slimwhisper.cores import set_threads
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.files import InputFile, sweep
from slimwhisper.jobs.inputs import Inputs, longest_first
from slimwhisper.jobs.job import Ledger, Outcomes, run_job
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.progress import LogHandler, model_facts
from slimwhisper.jobs.writers import RecordingResult, Write, write_result
from slimwhisper.loading import load_model
from slimwhisper.ray.worker_plan import WorkerPlan, plan_workers
from slimwhisper.recordings.transcribe import Loader
from slimwhisper.text import error_line
from slimwhisper.types import Transcript

LOOKAHEAD = 256  # recordings that are listed ahead of the workers
AHEAD = 16  # recordings in the queue for each worker
WAIT = 0.05  # seconds between two looks at what may be there
UNWRITTEN = 16  # results of a worker wait for the store, at most
SHIFTS = 10  # for each worker, of which deaths take one
FRUITLESS = 5  # the job ends after 5 + 3 per worker consecutive starts without a result
BLAMED = "2 workers died while transcribing it, the second with no other recording"
OBJECT_STORE = 128 << 20  # bytes on this host: results are small and rarely go there
# Ray serves metrics on all addresses, to anyone. With an invalid port it starts no server.
NO_METRICS = dict.fromkeys(("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT"), "-1")
NO_METRICS["RAY_enable_metrics_collection"] = "0"

Numbered = Loader[tuple[int, InputFile], None]

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
        logged = deque[str](maxlen=1000)
        logging.getLogger("slimwhisper").addHandler(LogHandler(logged.append))
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
        return Ready(model_facts(model, self.options["batch_size"]), list(logged))

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


def run_transcribe_on_ray(flags: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`."""
    return run_job(JobPlan.of(flags), transcribe_on_ray)


def transcribe_on_ray(plan: JobPlan, recordings: Iterator[InputFile], ledger: Ledger) -> Outcomes:
    """The engine of a job with workers, which decode and write; the driver records the results
    (`slimwhisper.jobs.writers`).
    """
    # larger files first; containers already yield longer ones first, and lists may arrive slowly
    ahead = LOOKAHEAD if isinstance(plan.inputs, Inputs) and not plan.inputs.is_list else 0
    ordered = longest_first(((one.fingerprint.size, one) for one in recordings), ahead)
    driver = Driver(plan, ledger)
    try:
        with started(plan) as workers:
            try:
                yield from driver.run(ordered, workers)
            except RayError as error:
                what = f"Ray stopped unexpectedly ({error_line(error)})"
                remedy = "run the same command again to resume the job"
                raise SlimWhisperError(f"{what}; {remedy}") from error
    finally:
        folder = plan.files.sink.local
        if folder is not None and plan.shard is None:  # else others may be writing there
            for output in driver.unclean:
                sweep((folder / output).parent, time.time())


@contextmanager
def started(plan: JobPlan) -> Iterator[WorkerPlan]:
    """Ray, started on this host or joined at --ray_address, until the context ends.

    On this host it serves no metrics, unless the environment overrides `NO_METRICS`.
    Raises OptionError and SlimWhisperError.
    """
    arguments: dict[str, Any] = {"address": plan.ray_address or "local"}
    if not plan.ray_address:
        arguments["object_store_memory"] = OBJECT_STORE
        if plan.devices not in (None, "all"):
            os.environ["CUDA_VISIBLE_DEVICES"] = plan.devices  # Ray counts these, and no others
        if plan.workers and plan.load["device"] == "cpu":
            arguments["num_gpus"] = 0
        for name, value in NO_METRICS.items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the job reports what matters
    previous_handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**arguments, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        what = f"Ray cannot be used ({arguments['address']}): {error_line(error)}"
        raise SlimWhisperError(what) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, previous_handler)  # the job handles it, not Ray
    try:
        hosts = sum(node["Alive"] for node in ray.nodes())
        yield plan_workers(plan, ray.cluster_resources(), max(hosts, 1))
    finally:
        ray.shutdown()


class Driver:
    """Gives recordings to workers, and yields the result of each once."""

    def __init__(self, plan: JobPlan, ledger: Ledger) -> None:
        self.unclean: set[str] = set()  # outputs that dead workers may have been writing
        self._plan, self._ledger = plan, ledger
        self._given: dict[int, InputFile] = {}  # to workers, or to the queue; without a result
        self._waiting = 0  # of these, in the queue
        ledger.in_progress = lambda: len(self._given) - self._waiting

    def run(self, recordings: Iterator[InputFile], workers: WorkerPlan) -> Outcomes:
        """Raises SlimWhisperError if the model cannot be loaded, or if workers die with every
        recording; RayError if Ray dies.
        """
        source: Numbered = Loader(enumerate(recordings), lambda _: None, LOOKAHEAD, 1)
        try:
            while not (source.exhausted or self._ledger.stopping()):
                yield from self._run(source, 0, SHIFTS * workers.workers, workers)
        finally:
            self.unclean.update(recording.output for recording in self._given.values())
            source.close(lambda _: None)
        if self._given and not self._ledger.stopping():
            suspects = list(self._given.items())
            alone: Numbered = Loader(suspects, lambda _: None, LOOKAHEAD, 1)
            yield from self._run(alone, 1, len(suspects) + SHIFTS, workers)
        for recording in self._given.values() if not self._ledger.stopping() else ():
            error = SlimWhisperError(f"{recording.path}: {BLAMED}; convert it to WAV")
            yield recording, RecordingResult("failed", error)

    def _run(self, source: Numbered, limit: int, shifts: int, workers: WorkerPlan) -> Outcomes:
        """Shifts of at most `limit` recordings, 0: any number, until the source is exhausted."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        data = self._data(queue, limit, shifts, workers)
        messages: Loader[bytes, Message] = Loader(data, pickle.loads, LOOKAHEAD, 1)
        ended = fruitful = False
        starts = 0  # of workers since the last result
        try:
            while not messages.exhausted:
                if not ended and (ended := self._feed(queue, source, AHEAD * workers.workers)):
                    queue.put_nowait_batch([None] * shifts)
                if (item := messages.next(block=False)) is None:
                    time.sleep(WAIT)
                    continue
                match item[1]:
                    case None:
                        starts += 1
                        self._check(starts, workers)
                    case Ready(facts, notes):
                        for warning in notes if self._ledger.facts is None else ():
                            self._ledger.console.warning(warning)
                        self._ledger.loaded(facts)
                    case Ended(number, result):
                        starts, fruitful = 0, True
                        if (recording := self._given.pop(number, None)) is not None:
                            self._show(recording, result)
                            yield recording, result
                    case error:
                        raise error
        finally:
            messages.close(lambda _: None)
        if not (ended or fruitful):
            self._check(shifts, workers)

    def _feed(self, queue: Queue, source: Numbered, room: int) -> bool:
        """Fill a queue; returns whether it has all, as no more recordings may start."""
        if self._ledger.stopping():
            with suppress(Empty):
                while True:
                    del self._given[queue.get_nowait()[0]]
            self._waiting = 0
            return True
        self._waiting = queue.qsize()
        new = iter(lambda: source.next(block=False), None)
        items = [item for item, _ in islice(new, max(0, room - self._waiting))]
        if items:
            self._given.update(items)
            queue.put_nowait_batch(items)
            self._waiting += len(items)
        return source.exhausted

    def _show(self, recording: InputFile, result: RecordingResult) -> None:
        if result.seconds is not None:
            self._ledger.duration(recording.path, result.seconds)
        if isinstance(result.result, Transcript):
            segments = result.result.segments
            self._ledger.segments(recording.path, segments, result.seconds or 0.0)

    @staticmethod
    def _check(starts: int, workers: WorkerPlan) -> None:
        if starts >= FRUITLESS + 3 * workers.workers:
            what = f"{starts} workers in a row died without a result"
            raise SlimWhisperError(f"{what}; try one recording without --engine ray")

    def _data(self, queue: Queue, limit: int, shifts: int, w: WorkerPlan) -> Iterator[bytes]:
        """The messages of the workers."""
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the job reports what matters
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.max_errored_blocks = -1
        context.max_consecutive_actor_init_deaths = FRUITLESS + 2 * w.workers
        context.target_max_block_size = 1  # bytes: each message is a block, and sent at once
        arguments = {
            "queue": queue,
            "folder": str(Path.cwd()),
            "threads": w.threads,
            "load": {"name": self._plan.model, **self._plan.load},
            "options": {"batch_size": self._plan.batch_size, **self._plan.decoding()},
            "write": self._ledger.results.write,
        }
        pool = ray.data.ActorPoolStrategy(size=w.workers, max_tasks_in_flight_per_actor=1)
        rows = ray.data.from_items([{"limit": limit}] * shifts, override_num_blocks=shifts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the last three will have other names one day
            rows = rows.map_batches(
                Worker,
                batch_size=1,
                batch_format="pyarrow",
                compute=pool,
                fn_constructor_kwargs=arguments,
                num_cpus=w.cpus,
                num_gpus=w.gpus,
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
            )
        for batch in rows.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from batch["message"].to_pylist()
