"""One model, one engine thread: the requests of all users share its batch.

    submit -> waiting -> read (reader processes) -> batch (slots) -> events -> finished or failed

Everything that touches the model runs on the service's own thread. A job's listener is called on
that thread too; an asynchronous listener passes the events on to its loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.counts import Counts
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import (
    BusyError,
    Failed,
    Finished,
    Job,
    Limits,
    ModelChoice,
    Started,
    State,
    StoppingError,
)
from slimwhisper.app.service.reading import NoRoomError, Reading
from slimwhisper.app.service.streams import Listener, LiveStream, Streams
from slimwhisper.app.service.turns import Jobs
from slimwhisper.errors import SlimWhisperError, as_ours
from slimwhisper.live.types import LiveOptions
from slimwhisper.longform.recording import Recording
from slimwhisper.types import Transcript

logger = logging.getLogger("slimwhisper.serve")

READING_POLL = 0.02  # seconds between checks on the readers while no engine works
IDLE_POLL = 0.1  # seconds between checks of the clock while there is nothing to do


class Service:
    """Accepts jobs from any thread and works on all of them together."""

    def __init__(
        self,
        load: Callable[[ModelChoice], SlimWhisper],
        batch_size: int | None = None,
        limits: Limits | None = None,
        unload_after: float = float("inf"),
        first: ModelChoice | None = None,
    ) -> None:
        """load: called when a model is needed. unload_after: seconds without jobs after which
        the model is unloaded. first: a model to load before the first job.
        """
        self.limits = limits or Limits()
        self.counts = Counts()
        self._changed = threading.Condition()
        self.engines = Engines(load, batch_size)
        self.streams = Streams(self.engines, self.limits, self.counts, self._changed)
        self.engines.loading = first is not None
        self.first: Future[None] = Future()  # done when the first model is loaded, or cannot be
        self._unload_after = unload_after
        self.reading = Reading(self.limits)
        self._jobs = Jobs()
        self._cancelled: set[Job] = set()
        self._ends: float | None = None  # when the patience does; None: it is not stopping
        self._idle_since = time.monotonic()
        name = "slimwhisper-engine"
        self._thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        self._thread.start()

    # -- from any thread ---------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Accept a job. Raises BusyError if the queue is full or live streams have another model,
        StoppingError at shutdown.
        """
        with self._changed:
            self._check_model(job.model, self.streams.open)
            if self.in_flight >= self.limits.queue:
                self.counts.refused += 1
                raise BusyError(f"{self.in_flight} requests are waiting; try again in a minute")
            self._jobs.wait(job)
            self._changed.notify()

    def open_stream(
        self, model: ModelChoice, options: LiveOptions, listener: Listener
    ) -> LiveStream:
        """A live stream. The listener is called on the service's thread: with events, then, after
        the last `Ended` or after `Failed`, with None. A listener that raises closes its stream.

        Raises BusyError if there are too many streams (`Limits.streams`) or another model has work,
        StoppingError at shutdown, OptionError. What only a model that is not loaded yet can tell
        comes as `Failed`.
        """
        self.streams.check(model, options)
        with self._changed:
            self._check_model(model, [*self.streams.open, *self._jobs])
            return self.streams.begin(model, options, listener)

    def _check_model(self, model: ModelChoice, others: Iterable[Job | LiveStream]) -> None:
        """Raises StoppingError at shutdown, BusyError if others have another model: a stream may
        last for hours, so that one who wants another model is not kept waiting.
        """
        if self._ends is not None:
            raise StoppingError("the server is shutting down; try again in a minute")
        if any(other.model != model for other in others):
            self.counts.refused += 1
            others_have = "another model or another cache"
            raise BusyError(f"the server is busy with {others_have}; try again in a minute")

    def cancel(self, job: Job) -> None:
        """Drop a job; it reports no more events. No effect on a job that has ended."""
        with self._changed:
            if not job.ended:
                self._cancelled.add(job)
                self._changed.notify()

    def position(self, job: Job) -> int:
        """A job's place in the queue, from 1; 0 if it is no longer waiting."""
        waiting = self._jobs.having(State.WAITING)
        return 1 + waiting.index(job) if job in waiting else 0

    @property
    def in_flight(self) -> int:
        """The number of jobs that wait, are being read or run."""
        return len(self._jobs)

    def states(self) -> dict[str, int]:
        """The number of jobs in each state."""
        return {s.value: len(self._jobs.having(s)) for s in State if s is not State.ENDED}

    @property
    def finishing(self) -> bool:
        """Whether the service is stopping and still has jobs or streams."""
        return self._ends is not None and bool(self.in_flight or self.streams.open)

    def health(self) -> str:
        """ "ready", "loading" or "stopping"."""
        if self._ends is not None:
            return "stopping"
        return "loading" if self.engines.loading else "ready"

    def stop(self, patience: float = 0.0) -> None:
        """Refuse new jobs; after `patience` seconds, fail those that have not finished.

        Returns at once. A signal handler may call it.
        """
        self._ends = time.monotonic() + patience

    def close(self, patience: float = 0.0) -> None:
        """Stop, and wait until all jobs have ended. An earlier `stop` keeps its patience."""
        if self._ends is None:
            self.stop(patience)
        self._thread.join()
        self.reading.close()

    # -- on the service's thread -------------------------------------------------------------

    def _run(self, first: ModelChoice | None) -> None:
        try:
            if first is not None:
                self.engines.load(first)
            self.first.set_result(None)
        except Exception as error:
            self.first.set_exception(as_ours(error))
        while self._wait_for_jobs():
            with self._changed:
                late = self._ends is not None and time.monotonic() > self._ends
                cancelled, self._cancelled = self._cancelled, set()
                starting = self._jobs.next(self.engines.slots, self.reading.room.admit)
            for job in cancelled:
                self._end(job, None)
            stopping = StoppingError("the server is shutting down")
            if late:
                self._fail(self._jobs, stopping)
                self.streams.fail(stopping)
                continue
            if self._ends is not None:
                self.streams.finish(stopping)
            try:
                self._start(starting)
                self.streams.take_in()
                self._work()
                self.streams.tell()
            except Exception as error:  # fails the jobs in the engine, but not those in the queue
                logger.exception("the engine failed")
                self._fail(self._jobs.having(State.RUNNING), as_ours(error))
                self.streams.fail(as_ours(error))
                self.engines.drop_all()
            self._idle_since = time.monotonic()
        self.engines.unload()

    def _wait_for_jobs(self) -> bool:
        """Wait until there are jobs, new or cancelled, or streams have work; False at the end.
        Unloads an idle model.
        """
        with self._changed:
            while not (self._cancelled or self.in_flight):
                stopping = self._ends is not None
                if stopping or self.streams.waiting or self.engines.working():
                    return bool(self.streams.open or not stopping)
                self._changed.wait(IDLE_POLL)
                if self.streams.open:
                    self._idle_since = time.monotonic()
                model, idle = self.engines.model, time.monotonic() - self._idle_since
                if model is not None and idle > self._unload_after:
                    logger.info("idle: %s is unloaded until it is needed again", model.name)
                    self.engines.unload()
        return True

    def _start(self, jobs: list[Job]) -> None:
        """Load the jobs' model, then read their recordings in other threads."""
        if not jobs:
            return
        try:
            model = self.engines.load_for_users(jobs[0].model)
        except SlimWhisperError as error:
            self._fail(jobs, error)
            return
        self.reading.room.slots = self.engines.slots
        for job in jobs:
            self.reading.begin(job, model)

    def _work(self) -> None:
        """Begin the jobs that have been read, then make one step of each engine with work."""
        for job, future in self.reading.done():
            self._begin(job, future)
        for shared, error in self.engines.take_turns():
            running = self._jobs.having(State.RUNNING)
            self._fail([job for job in running if job.batch is shared.batch], error)
            self.streams.fail(error, shared.updates)
        working = [shared for shared in self.engines.working() if shared.engine.slots]
        if not working and self.in_flight:  # only the readers have work
            with self._changed:
                if not (self._cancelled or self._ends or self.streams.waiting):
                    self._changed.wait(READING_POLL)
        for shared in working:
            since = time.monotonic()
            shared.fill(live=bool(self.streams.open))
            self.counts.steps += 1
            self.counts.filled += shared.engine.slots - shared.engine.free
            preempted = shared.engine.preemptions
            for job, outcome in shared.batch.step():
                self._end(job, outcome)
            self.counts.preemptions += shared.engine.preemptions - preempted
            self.counts.busy_seconds += time.monotonic() - since

    def _begin(self, job: Job, future: "Future[Recording]") -> None:
        """Hand a recording that has been read to an engine."""
        recording: Recording | None = None
        try:
            recording = future.result()
            batch = self.engines.for_recordings(recording.options).batch
        except NoRoomError:  # its turn to be read comes again
            self.reading.drop(job)
            with self._changed:
                self._jobs.wait(job)
            return
        except Exception as error:
            if recording is not None:
                recording.close()
            if not isinstance(error, SlimWhisperError):
                logger.error("a recording could not be read", exc_info=error)
            self._end(job, as_ours(error))
            return
        job.recording, job.batch, job.state = recording, batch, State.RUNNING
        job.tell(Started(recording.seconds))
        if (transcript := batch.add(job, recording)) is not None:
            self._end(job, transcript)

    def _end(self, job: Job, outcome: Transcript | SlimWhisperError | None) -> None:
        """Drop a job and report its outcome; None: it was cancelled, which is not reported."""
        with self._changed:
            if job.ended:
                return
            job.state = State.ENDED
            self._jobs.drop(job)
        self.reading.drop(job)
        if job.batch is not None and job.recording in job.batch.running:
            job.batch.drop(job.recording)
        job.batch = None  # who keeps the job does not keep the engine
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

    def _fail(self, jobs: Iterable[Job], error: SlimWhisperError) -> None:
        for job in jobs:
            self._end(job, error)
