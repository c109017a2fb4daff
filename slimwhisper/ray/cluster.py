"""Ray, on this host or on a cluster, and the workers of a job: actors of Ray."""

import argparse
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
from slimwhisper.jobs.results.sinks import Ended
from slimwhisper.ray.plan import Plan, plan_workers
from slimwhisper.ray.scheduler import Scheduler
from slimwhisper.ray.worker import Ready, Worker
from slimwhisper.storage.files import InputFile
from slimwhisper.text import one_line

OBJECT_STORE = 128 << 20  # bytes on this host: results are small and rarely go there
CALLS = 10_000  # of one worker at the same time, at most
AHEAD = 16  # recordings beside those in slots, at least: they are read meanwhile
WAIT = 0.05  # seconds for which the loop waits for workers
STOP_SECONDS = 10.0  # for outputs that are being written at the end
FRUITLESS = 5  # deaths, and two of each worker, with no result between them, that end the job
BLAMED = "2 workers died with it, the second had nothing else; convert it to WAV or FLAC"
# Ray serves metrics at all addresses, to anyone. It starts no server at a port that cannot be.
NO_METRICS = {
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}


@contextmanager
def started(a: argparse.Namespace) -> Iterator[Plan]:
    """Ray, started on this host or joined at --ray_address; it is left in the end.

    On this host it serves no metrics, unless the environment says otherwise (`NO_METRICS`).
    Raises OptionError and SlimWhisperError.
    """
    where: dict[str, Any] = {"address": a.ray_address or "local"}
    if not a.ray_address:
        where["object_store_memory"] = OBJECT_STORE
        if a.devices not in (None, "all"):
            os.environ["CUDA_VISIBLE_DEVICES"] = a.devices  # Ray counts these, and no others
        if a.workers and a.device == "cpu":
            where["num_gpus"] = 0
        for name, value in NO_METRICS.items():
            os.environ.setdefault(name, value)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        what = f"Ray cannot be used ({where['address']}): {one_line(error)}"
        raise SlimWhisperError(what) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray takes it; the job has its own way to end
    try:
        hosts = sum(node["Alive"] for node in ray.nodes())
        yield plan_workers(a, ray.cluster_resources(), max(hosts, 1))
    finally:
        ray.shutdown()


Outcomes = Iterator[tuple[InputFile, Ended]]


class Workers:
    """The actors of a job. One that dies is replaced by another with a new number."""

    def __init__(self, plan: Plan, on_ready: Callable[..., None], *arguments: Any) -> None:
        """on_ready: called with what a worker's `load` returns. arguments: of `Worker`, after the
        threads.
        """
        self.scheduler: Scheduler[InputFile] = Scheduler()
        self.fill: dict[int, float] = {}  # worker -> share of its slots in use, so far
        self.unclean: set[str] = set()  # outputs that dead workers may have been writing
        self._plan, self._on_ready, self._arguments = plan, on_ready, arguments
        self._actors: dict[int, Any] = {}
        # what is waited for -> the worker, and the recording if it is one
        self._calls: dict[Any, tuple[int, InputFile | None]] = {}
        self._started = self._deaths = 0  # deaths since the last result
        for _ in range(plan.workers):
            self._start()

    def run(self, source: Loader[InputFile, None], stopping: Callable[[], bool]) -> Outcomes:
        """Transcribe the recordings of a source, and tell each recording's end once.

        stopping: whether nothing more is to start.
        Raises SlimWhisperError if no model can be loaded, workers die whatever they are given, or
        Ray does.
        """

        def take() -> InputFile | None:
            found = source.next(block=False)
            return found and found[0]

        stopped = False
        while self.scheduler.running or not (
            stopped or (source.exhausted and self.scheduler.finished)
        ):
            if not (stopped := stopping()):
                for worker, recording in self.scheduler.assign(take):
                    call = self._actors[worker].transcribe.remote(recording)
                    self._calls[call] = worker, recording
            yield from self._wait()

    def close(self) -> None:
        """End the workers, when they have written what they are writing."""
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
        """What has ended in `WAIT` seconds."""
        dead: dict[int, RayError] = {}
        calls = list(self._calls)
        for call in ray.wait(calls, num_returns=len(calls), timeout=WAIT)[0]:
            worker, recording = self._calls.pop(call)
            try:
                answer = ray.get(call)
            except RayTaskError as error:  # a defect, and no death
                what = one_line(error.cause, kind=True)
                raise SlimWhisperError(f"a worker failed: {what}") from error
            except RayError as error:  # it has died, or cannot be reached, which ends it
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
        """Replace a worker that has died; what is given up is reported."""
        if not any(node["Alive"] for node in ray.nodes()):
            self._actors.clear()  # nothing to end
            raise SlimWhisperError("Ray has died; run the same command again to resume")
        ray.kill(self._actors.pop(worker))
        self.fill.pop(worker, None)
        self._calls = {c: call for c, call in self._calls.items() if call[0] != worker}
        lost, given_up = self.scheduler.down(worker)
        self.unclean.update(recording.output for recording in lost)
        self._deaths += 1
        if self._deaths >= FRUITLESS + 2 * self._plan.workers:
            raise SlimWhisperError(
                f"{self._deaths} workers have died and nothing was transcribed in between "
                f"({one_line(error)}); try one recording without --engine ray"
            )
        self._start()
        for recording in lost if given_up else ():
            yield recording, Ended("failed", SlimWhisperError(f"{recording.path}: {BLAMED}"))
