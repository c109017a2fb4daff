"""One model, one engine thread: the requests of all users share its batch.

    submit -> waiting -> read (reader processes) -> batch (slots) -> events -> finished or failed

Everything that touches the model happens on the service's own thread. What a request is told comes
as events, in that thread; an asynchronous listener hands them to its loop.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import (
    BusyError,
    Counts,
    Failed,
    Finished,
    Job,
    Limits,
    ModelChoice,
    ModelError,
    Progress,
    Started,
    StoppingError,
)
from slimwhisper.app.service.reader import Readers
from slimwhisper.app.service.turns import next_jobs
from slimwhisper.audio.read_ahead import WORKERS
from slimwhisper.errors import (
    CacheError,
    DependencyError,
    OptionError,
    SlimWhisperError,
    as_ours,
)
from slimwhisper.longform.batch import Batch, make_engine
from slimwhisper.longform.recording import Recording
from slimwhisper.options import make_options
from slimwhisper.types import Options, Segment, Transcript

logger = logging.getLogger("slimwhisper.serve")

READING_POLL = 0.02  # seconds between looks at the readers, while no engine works
IDLE_POLL = 0.1  # seconds between looks at the clock, while there is nothing to do


class Service:
    """Takes jobs from any thread, and works on all of them at once."""

    def __init__(
        self,
        load: Callable[[ModelChoice], SlimWhisper],
        batch_size: int | None = None,
        limits: Limits | None = None,
        unload_after: float = float("inf"),
        first: ModelChoice | None = None,
    ) -> None:
        """load: called when a model is needed. unload_after: idle seconds after which
        the model is given up. first: a model to load before anybody asks.
        """
        self.limits = limits or Limits()
        self.counts = Counts()
        self.loaded: ModelChoice | None = None  # what `model` is
        self.model: SlimWhisper | None = None
        self.slots, self.loading = 0, first is not None
        self.load_error: SlimWhisperError | None = None  # of the first model
        self.begun = threading.Event()  # the first model is there, or will not come
        self._load_model, self._batch_size, self._unload_after = load, batch_size, unload_after
        self._readers = Readers(WORKERS, self.limits.seconds, self.limits.reading)
        self._pool = ThreadPoolExecutor(WORKERS, "slimwhisper-read")
        self._batches: dict[object, Batch[Job]] = {}  # by breadth
        self._waiting: deque[Job] = deque()
        self._reading: dict[Job, Future[Recording]] = {}
        self._running: set[Job] = set()
        self._accepted: set[Job] = set()  # and not ended: those that wait, are read or run
        self._cancelled: set[Job] = set()
        self._changed = threading.Condition()
        self._stopping, self._patience_ends = False, 0.0
        self._idle_since = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(first,), name="slimwhisper-engine", daemon=True
        )
        self._thread.start()

    # -- from any thread ---------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Take a job. Raises BusyError where the queue is full, StoppingError at the end."""
        with self._changed:
            if self._stopping:
                raise StoppingError("the server is shutting down; try again in a minute")
            if self.in_flight >= self.limits.queue:
                self.counts.refused += 1
                raise BusyError(f"{self.in_flight} requests are waiting; try again in a minute")
            self._waiting.append(job)
            self._accepted.add(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Give a job up; it hears nothing more. A job that has ended already stays so."""
        with self._changed:
            if not job.ended:
                self._cancelled.add(job)
                self._changed.notify()

    def position(self, job: Job) -> int:
        """How many jobs came before this one and have not begun; 0: it has."""
        with self._changed:
            return 1 + self._waiting.index(job) if job in self._waiting else 0

    @property
    def in_flight(self) -> int:
        """Jobs that wait, are read or run."""
        return len(self._accepted)

    def states(self) -> dict[str, int]:
        """How many jobs there are, by where they are."""
        waiting, running = len(self._waiting), len(self._running)
        reading = max(len(self._accepted) - waiting - running, 0)
        return {"waiting": waiting, "reading": reading, "running": running}

    @property
    def finishing(self) -> bool:
        """Whether the end was asked for, and something still runs."""
        return self._stopping and self.in_flight > 0

    def health(self) -> str:
        """ "ready", "loading" the model, or "stopping"."""
        if self._stopping:
            return "stopping"
        return "loading" if self.loading else "ready"

    def cache_bytes(self) -> int:
        """Bytes that the caches of all engines hold."""
        return sum(batch.engine.nbytes() for batch in list(self._batches.values()))

    def stop(self, patience: float = 0.0) -> None:
        """Take nothing new, finish what there is for `patience` seconds, fail the rest.

        Returns at once, and may be called by a signal's handler.
        """
        self._patience_ends = time.monotonic() + patience
        self._stopping = True

    def close(self, patience: float = 0.0) -> None:
        """Stop, and wait for the end. A stop that was asked for before keeps its patience."""
        if not self._stopping:
            self.stop(patience)
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)
        self._readers.close()

    # -- the service's thread ----------------------------------------------------------------

    def _run(self, first: ModelChoice | None) -> None:
        if first is not None:
            try:
                self._load(first)
            except Exception as error:
                self.load_error = as_ours(error)
        self.begun.set()
        while True:
            with self._changed:
                while not (self._cancelled or self.in_flight):
                    if self._stopping:
                        self._unload()
                        return
                    self._changed.wait(IDLE_POLL)
                    if self.model is not None and self._idle_for() > self._unload_after:
                        logger.info("idle: %s is given up until it is needed", self.model.name)
                        self._unload()
                late = self._stopping and time.monotonic() > self._patience_ends
                cancelled, self._cancelled = self._cancelled, set()
                starting = next_jobs(self._waiting, self._reading, self._running, self.slots)
            for job in cancelled:
                self._end(job, None)
            if late:
                self._fail(list(self._accepted), StoppingError("the server is shutting down"))
                continue
            try:
                self._start(starting)
                self._work()
            except Exception as error:  # the engine itself: whoever is in it fails, others go on
                logger.exception("the engine failed")
                self._fail(list(self._running), as_ours(error))
                self._batches.clear()
            self._idle_since = time.monotonic()

    def _idle_for(self) -> float:
        return time.monotonic() - self._idle_since

    def _start(self, jobs: list[Job]) -> None:
        """Read the recordings of jobs, in other threads, once their model is there."""
        if not jobs:
            return
        choice = jobs[0].model
        try:
            model = self._load(choice)
        except Exception as error:
            logger.error("%s does not load: %s", choice.name, error)
            self._fail(jobs, _told(error, choice))
            return
        for job in jobs:
            self._reading[job] = self._pool.submit(self._read, job, model)

    def _load(self, choice: ModelChoice) -> SlimWhisper:
        """The model chosen; another one goes first."""
        if self.model is not None and self.loaded == choice:
            return self.model
        self._unload()
        self.loading = True
        try:
            model = self._load_model(choice)
        finally:
            self.loading = False
        self.model, self.loaded = model, choice
        self.slots = model.choose_batch_size(self._batch_size)
        return model

    def _read(self, job: Job, model: SlimWhisper) -> Recording:
        """In a reading thread: the recording, its samples from another process."""
        options = make_options(model.dims, job.model.shown, **job.options)
        samples = self._readers.read(job.path, job.name)
        job.show(samples)
        return Recording(samples, model.dims, options)

    def _work(self) -> None:
        """Take in what has been read, then one step of each engine that has something to do."""
        for job, future in list(self._reading.items()):
            if future.done():
                del self._reading[job]
                self._begin(job, future)
        batches = [b for b in self._batches.values() if b.running]
        if not batches:  # nothing to do but to wait for a reader
            with self._changed:
                if not (self._cancelled or self._stopping):
                    self._changed.wait(READING_POLL)
            return
        for batch in batches:
            since = time.monotonic()
            batch.fill()
            self.counts.steps += 1
            self.counts.filled += batch.engine.slots - batch.engine.free
            for job, outcome in batch.step():
                self._end(job, outcome)
            self.counts.busy_seconds += time.monotonic() - since

    def _begin(self, job: Job, future: "Future[Recording]") -> None:
        try:
            recording = future.result()
            batch = self._batch_for(recording.options)
        except Exception as error:
            self._end(job, as_ours(error))
            return
        job.recording, job.batch = recording, batch
        self._running.add(job)
        job.tell(Started(recording.seconds))
        result = batch.add(job, recording)
        if result is not None:
            self._end(job, result)

    def _batch_for(self, options: Options) -> "Batch[Job]":
        """The batch of an engine for this breadth; those of others go when nobody uses them."""
        assert self.model is not None
        breadth = (options.beam_size, options.patience, options.best_of, options.length_penalty)
        batch = self._batches.get(breadth)
        if batch is None:
            self._batches = {k: b for k, b in self._batches.items() if b.running}
            rows = options.beam_size or 1
            slots = max(self.slots // rows, 1)
            batch = Batch(make_engine(self.model.network, options, slots), self._progress)
            self._batches[breadth] = batch
        return batch

    def _progress(self, job: Job, segments: list[Segment], done: float) -> None:
        job.tell(Progress(segments, done))

    def _end(self, job: Job, outcome: Transcript | SlimWhisperError | None) -> None:
        """Let go of a job and tell it how it went; None: it was cancelled."""
        with self._changed:
            if job.ended:
                return
            job.ended = True
            self._accepted.discard(job)
            if job in self._waiting:
                self._waiting.remove(job)
        self._running.discard(job)
        future = self._reading.pop(job, None)
        if future is not None:
            future.cancel()
            future.add_done_callback(_close_unheard)
        if job.batch is not None and job.recording in job.batch.running:
            job.batch.drop(job.recording)
        if isinstance(outcome, Transcript):
            assert job.recording is not None
            self.counts.finished += 1
            self.counts.audio_seconds += job.recording.seconds
            job.tell(Finished(outcome, job.recording.seconds))
        elif outcome is not None:
            self.counts.failed += 1
            job.tell(Failed(outcome))
        else:
            self.counts.cancelled += 1

    def _fail(self, jobs: list[Job], error: SlimWhisperError) -> None:
        for job in jobs:
            self._end(job, error)

    def _unload(self) -> None:
        self._batches.clear()
        self.model, self.loaded, self.slots = None, None, 0
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _told(error: Exception, choice: ModelChoice) -> SlimWhisperError:
    """What users are told of a model that does not load: nothing of where it lies."""
    if isinstance(error, CacheError | DependencyError | OptionError):
        return type(error)(str(error).replace(choice.name, choice.shown))
    return ModelError(f"{choice.shown} does not load just now; the server's log has more")


def _close_unheard(future: "Future[Recording]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
