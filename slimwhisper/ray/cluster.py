"""Starts or joins Ray, and runs the workers of a job, which are actors of Ray."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from slimwhisper.audio.read_ahead import Loader
from slimwhisper.errors import SlimWhisperError
from slimwhisper.files import InputFile
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.results.writers import RecordingResult
from slimwhisper.ray.work_scheduler import WorkScheduler
from slimwhisper.ray.worker import Ready, Worker
from slimwhisper.ray.worker_plan import WorkerPlan, plan_workers
from slimwhisper.text import error_line

OBJECT_STORE = 128 << 20  # bytes on this host: results are small and rarely go there
CALLS = 10_000  # of one worker at the same time, at most
AHEAD = 16  # at least this many recordings are read while others are in slots
WAIT = 0.05  # seconds for which the loop waits for workers
STOP_SECONDS = 10.0  # for outputs that are being written at the end
FRUITLESS = 5  # the job ends after 5 + 2 per worker consecutive deaths without a result
BLAMED = (
    "2 workers died while transcribing it, the second with no other recording; convert it to WAV"
)
# Ray serves metrics on all addresses, to anyone. With an invalid port it starts no server.
NO_METRICS = {
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}


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


Outcomes = Iterator[tuple[InputFile, RecordingResult]]


class Workers:
    """The actors of a job. One that dies is replaced by another with a new number."""

    def __init__(self, plan: WorkerPlan, on_ready: Callable[..., None], *arguments: Any) -> None:
        """on_ready: called with what a worker's `load` returns. arguments: of `Worker`, after the
        threads.
        """
        self.scheduler: WorkScheduler[InputFile] = WorkScheduler()
        self.fill: dict[int, float] = {}  # worker -> share of its slots in use, so far
        self.unclean: set[str] = set()  # outputs that dead workers may have been writing
        self._plan, self._on_ready, self._arguments = plan, on_ready, arguments
        self._actors: dict[int, Any] = {}
        # pending call -> its worker, and its recording if it transcribes one
        self._calls: dict[Any, tuple[int, InputFile | None]] = {}
        self._started = self._deaths = 0  # deaths since the last result
        for _ in range(plan.workers):
            self._start()

    def run(self, source: Loader[InputFile, None], stopping: Callable[[], bool]) -> Outcomes:
        """Transcribe the recordings of a source, and yield each one's result once.

        stopping: whether no more recordings may start.
        Raises SlimWhisperError if the model cannot be loaded, if workers die with every recording,
        or if Ray dies.
        """

        def next_recording() -> InputFile | None:
            loaded = source.next(block=False)
            return loaded and loaded[0]

        stopped = False
        while self.scheduler.running or not (
            stopped or (source.exhausted and self.scheduler.finished)
        ):
            if not (stopped := stopping()):
                for worker, recording in self.scheduler.assign(next_recording):
                    call = self._actors[worker].transcribe.remote(recording)
                    self._calls[call] = worker, recording
            yield from self._wait()

    def close(self) -> None:
        """End the workers, after they have finished the outputs that they are writing."""
        stops = [self._actors[worker].stop.remote() for worker in self.fill]  # not while loading
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=STOP_SECONDS)
        for actor in self._actors.values():
            ray.kill(actor)

    def _start(self) -> None:
        actor = ray.remote(Worker).options(
            num_cpus=self._plan.cpus,
            num_gpus=self._plan.gpus,
            max_concurrency=CALLS,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        self._actors[self._started] = actor.remote(self._plan.threads, *self._arguments)
        self._calls[self._actors[self._started].load.remote()] = self._started, None
        self._started += 1

    def _wait(self) -> Outcomes:
        """The recordings that end within `WAIT` seconds."""
        dead: dict[int, RayError] = {}
        calls = list(self._calls)
        for call in ray.wait(calls, num_returns=len(calls), timeout=WAIT)[0]:
            worker, recording = self._calls.pop(call)
            try:
                answer = ray.get(call)
            except RayTaskError as error:  # a defect in the worker, which is still alive
                what = error_line(error.cause, kind=True)
                raise SlimWhisperError(f"a worker failed: {what}") from error
            except RayError as error:  # it has died, or cannot be reached and is ended
                dead[worker] = error
                continue
            if isinstance(answer, SlimWhisperError):  # no worker can load the model
                raise answer
            if recording is None:
                self._up(worker, answer)
            else:
                ended, self.fill[worker] = answer
                self._deaths = 0
                self.scheduler.done(worker, recording)
                yield recording, ended
        for worker, reason in dead.items():
            yield from self._down(worker, reason)

    def _up(self, worker: int, ready: Ready) -> None:
        slots = ready[0]["batch_size"]
        self.fill[worker] = 0.0
        self.scheduler.up(worker, slots + max(AHEAD, slots // 2))
        self._calls[self._actors[worker].outlive.remote()] = worker, None
        self._on_ready(*ready)

    def _down(self, worker: int, error: RayError) -> Outcomes:
        """Replace a worker that has died, and yield the recording that it fails with, if any."""
        if not any(node["Alive"] for node in ray.nodes()):
            self._actors.clear()  # nothing to end
            raise SlimWhisperError(
                "Ray stopped unexpectedly; run the same command again to resume the job"
            )
        ray.kill(self._actors.pop(worker))
        self.fill.pop(worker, None)
        self._calls = {c: call for c, call in self._calls.items() if call[0] != worker}
        lost, failed = self.scheduler.down(worker)
        self.unclean.update(recording.output for recording in lost)
        self._deaths += 1
        if self._deaths >= FRUITLESS + 2 * self._plan.workers:
            raise SlimWhisperError(
                f"{self._deaths} workers in a row died without a result "
                f"({error_line(error)}); try one recording without --engine ray"
            )
        self._start()
        for recording in lost if failed else ():
            yield (
                recording,
                RecordingResult("failed", SlimWhisperError(f"{recording.path}: {BLAMED}")),
            )
