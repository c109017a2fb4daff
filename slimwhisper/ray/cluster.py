"""Workers as actors of Ray, on this host or on a cluster."""

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.ray.driver import Down, Event, Reported, Up
from slimwhisper.ray.plan import Plan, plan_workers
from slimwhisper.ray.results import Settings
from slimwhisper.ray.worker import STOP_SECONDS, Worker
from slimwhisper.text import one_line

OBJECT_STORE = 128 << 20  # bytes on this host: results are small and rarely go there
CONCURRENCY = 4  # calls of one worker at the same time
CHECK = 5.0  # seconds between looks for hosts that are left
STARTS = 5  # deaths in a row, before the model is loaded, that end the job
AHEAD = 16  # recordings beside those in slots, at least: they are read meanwhile


@contextmanager
def started(a: argparse.Namespace) -> Iterator[Plan]:
    """Ray, started on this host or joined at --ray_address; it is left in the end.

    Raises OptionError and SlimWhisperError.
    """
    here: dict[str, Any] = {"address": "local", "object_store_memory": OBJECT_STORE}
    if a.devices not in (None, "all"):
        os.environ["CUDA_VISIBLE_DEVICES"] = a.devices  # Ray counts these, and no others
    if a.workers and a.device == "cpu":
        here["num_gpus"] = 0
    where = {"address": a.ray_address} if a.ray_address else here
    try:
        with _kept_signals():
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = f"at {a.ray_address}" if a.ray_address else "on this host"
        raise SlimWhisperError(f"Ray cannot be used {place}: {one_line(error)}") from error
    try:
        hosts = sum(node["Alive"] for node in ray.nodes())
        yield plan_workers(a, ray.cluster_resources(), max(hosts, 1))
    finally:
        ray.shutdown()


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; the job has its own way to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class RayCluster:
    """The actors of a job. One that dies is replaced by another with a new number."""

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._settings = settings
        self._actor = ray.remote(Worker).options(
            num_cpus=plan.cpus,
            num_gpus=plan.gpus,
            max_concurrency=CONCURRENCY,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # what `wait` waits for -> the worker
        self._loading: set[int] = set()
        self._failed_starts = 0
        self._started = 0
        self._next_check = 0.0
        for _ in range(plan.workers):
            self._start()

    def submit(self, worker: int, recordings: list[InputFile]) -> None:
        if worker in self._actors:
            self._actors[worker].submit.remote(recordings)

    def drop(self, worker: int, recording: InputFile) -> None:
        if worker in self._actors:
            self._actors[worker].drop.remote(recording)

    def wait(self, seconds: float) -> list[Event]:
        """See `Cluster`. Raises SlimWhisperError if no model can be loaded, or no host is left."""
        self._check_hosts()
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        return [event for call in ready for event in self._answer(call)]

    def _check_hosts(self) -> None:
        """Without Ray's process on any host, nothing would ever happen again."""
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK
        if not any(node["Alive"] for node in ray.nodes()):
            self._actors.clear()  # nothing to end
            raise SlimWhisperError("Ray has died; run the same command again to resume")

    def close(self) -> None:
        """End the workers, when they have written what they are writing."""
        stops = [
            actor.stop.remote()
            for worker, actor in self._actors.items()
            if worker not in self._loading
        ]
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=STOP_SECONDS)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        self._calls.clear()

    def _start(self) -> None:
        worker = self._started
        self._started += 1
        actor = self._actors[worker] = self._actor.remote(self._settings)
        self._calls[actor.ready.remote()] = worker
        self._loading.add(worker)

    def _answer(self, call: Any) -> list[Event]:
        worker = self._calls.pop(call)
        try:
            answer = ray.get(call)
        except RayTaskError as error:  # a defect, and no death
            raise SlimWhisperError(
                f"a worker failed: {one_line(error.cause, kind=True)}"
            ) from error
        except RayError as error:
            return self._replace(worker, error)
        if worker in self._loading:
            self._loading.discard(worker)
            if isinstance(answer, SlimWhisperError):
                raise answer
            self._failed_starts = 0
            size = answer.facts["batch_size"]
            room = size + max(AHEAD, size // 2)
            found: Event = Up(worker, room, answer.facts, answer.warnings)
        else:
            found = Reported(worker, answer)
        self._calls[self._actors[worker].poll.remote()] = worker
        return [found]

    def _replace(self, worker: int, error: RayError) -> list[Event]:
        """A worker has died, or cannot be reached, which ends it."""
        ray.kill(self._actors.pop(worker))
        if worker in self._loading:
            self._loading.discard(worker)
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise SlimWhisperError(
                    f"{STARTS} workers died while they loaded the model: {one_line(error)}"
                ) from error
            self._start()
            return []
        self._start()
        return [Down(worker)]
