"""The transcription service: one model, one engine thread, one batch for all users' requests.

    submit -> waiting -> read (reader processes) -> batch (slots) -> events -> finished or failed

Only the service's own thread touches the model. That thread also calls the jobs' listeners; an
asynchronous listener passes the events to its event loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.counts import RequestCounts
from slimwhisper.app.service.engines import Engines
from slimwhisper.app.service.jobs import (
    STOPPING,
    BusyError,
    Job,
    Jobs,
    JobStarted,
    JobState,
    Limits,
    ModelChoice,
    StoppingError,
)
from slimwhisper.app.service.reading import NoRoomError, Reading
from slimwhisper.app.service.streams import Listener, LiveStream, Streams
from slimwhisper.errors import SlimWhisperError, wrap_unexpected
from slimwhisper.live.types import LiveOptions
from slimwhisper.longform.requests import search_of
from slimwhisper.recordings.transcribe import AnyRecording, RecordingSource
from slimwhisper.service.source import Event, Failed, Finished, Progress
from slimwhisper.service.transcriber import Call

logger = logging.getLogger("slimwhisper.serve")

READING_POLL = 0.02  # seconds between checks on the readers while no engine works
IDLE_POLL = 0.1  # seconds between checks of the clock while there is nothing to do


class Service:
    """Accepts jobs from any thread and transcribes them in shared batches."""

    def __init__(
        self,
        load: Callable[[ModelChoice], SlimWhisper],
        batch_size: int | None = None,
        limits: Limits | None = None,
        unload_after: float = float("inf"),
        first: ModelChoice | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """load: called when a model is needed. unload_after: seconds without jobs after which
        the model is unloaded. first: a model to load before the first job. defaults: options of
        every job, which its own replace.
        """
        self.limits = limits or Limits()
        self.counts = RequestCounts()
        self._changed = threading.Condition()
        self.engines = Engines(load, batch_size)
        self.streams = Streams(self.engines, self.limits, self.counts, self._changed)
        self.engines.loading = first is not None
        self.first: Future[None] = Future()  # done when the first model is loaded, or cannot be
        self._unload_after = unload_after
        self.reading = Reading(self.limits, defaults or {})
        self.jobs = Jobs()
        self._deadline: float | None = None  # by time.monotonic(); None: it is not stopping
        self._idle_since = time.monotonic()
        name = "slimwhisper-engine"
        self._thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        self._thread.start()

    # -- from any thread ---------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Accept a job. Raises BusyError if the queue is full or live streams use another model,
        StoppingError at shutdown.
        """
        with self._changed:
            self._check_model(job.model)
            if self.in_flight >= self.limits.queue:
                self.counts.refused += 1
                raise BusyError(f"{self.in_flight} requests are waiting; try again in a minute")
            self.jobs.enqueue(job)
            self._changed.notify()

    def open_stream(
        self, model: ModelChoice, options: LiveOptions, listener: Listener
    ) -> LiveStream:
        """A live stream. The service's thread calls the listener with each event, and with None
        after the last `UtteranceEnded` or after `StreamFailed`. A listener that raises closes its
        stream.

        Raises BusyError if there are too many streams (`Limits.streams`) or another model has work,
        StoppingError at shutdown, OptionError. Errors that need a model which is not loaded yet
        arrive as `StreamFailed`.
        """
        self.engines.check_stream(model, options)
        with self._changed:
            self._check_model(model, self.jobs)
            return self.streams.begin(model, options, listener)

    def _check_model(self, model: ModelChoice, jobs: Iterable[Job] = ()) -> None:
        # users of another model may be streams, which last too long for a request to wait
        if not self._thread.is_alive():  # after a fork
            raise StoppingError("the service does not run in this process; make a new one here")
        if self._deadline is not None:
            raise StoppingError(STOPPING)
        users: list[Job | LiveStream] = [*jobs, *(s for s in self.streams.open if not s.closed)]
        if any(user.model != model for user in users):
            self.counts.refused += 1
            raise BusyError("the server is busy with another model or cache; try again in a minute")

    def cancel(self, job: Job) -> None:
        """Cancel a job; it emits no more events. No effect on a job that has ended."""
        with self._changed:
            if not job.ended:
                self.jobs.cancelled.add(job)
                self._changed.notify()

    @property
    def in_flight(self) -> int:
        """The number of jobs that wait, are being read or run."""
        return len(self.jobs)

    @property
    def finishing(self) -> bool:
        """Whether the service is stopping and still has jobs or streams."""
        return self._deadline is not None and bool(self.in_flight or self.streams.open)

    def health(self) -> str:
        """ "ready", "loading" or "stopping"."""
        if self._deadline is not None:
            return "stopping"
        return "loading" if self.engines.loading else "ready"

    def stop(self, patience: float = 0.0) -> None:
        """Refuse new jobs; after `patience` seconds, fail those that have not finished.

        Does not wait. A signal handler may call it.
        """
        self._deadline = time.monotonic() + patience

    def close(self, patience: float = 0.0) -> None:
        """Stop, and wait until all jobs have ended. The patience of an earlier `stop` counts."""
        if self._deadline is None:
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
            self.first.set_exception(wrap_unexpected(error))
        while self._wait_for_jobs():
            with self._changed:
                late = self._deadline is not None and time.monotonic() > self._deadline
                cancelled, self.jobs.cancelled = self.jobs.cancelled, set()
                starting = self.jobs.next_to_read(self.engines.slots, self.reading.store.admit)
            for job in cancelled:
                self._end(job, None)
            stopping = StoppingError(STOPPING)
            if late:
                self._fail(self.jobs, stopping)
                self.streams.fail(stopping)
                continue
            if self._deadline is not None:
                self.streams.finish(stopping)
            try:
                self._start([job for job in starting if not job.ended])
                self.streams.drain_inboxes()
                self._work()
                self.streams.emit_events()
            except Exception as error:  # fails the running jobs, but not those in the queue
                logger.exception("the engine failed")
                self._fail(self.jobs.in_state(JobState.RUNNING), wrap_unexpected(error))
                self.streams.fail(wrap_unexpected(error))
                if self.engines.model is not None:
                    self.engines.transcriber.drop(wrap_unexpected(error))
            self._idle_since = time.monotonic()
        self.engines.unload()

    def _wait_for_jobs(self) -> bool:
        """Wait for new or cancelled jobs, or for work of streams; False at shutdown. Unloads an
        idle model.
        """
        with self._changed:
            while not (self.jobs.cancelled or self.in_flight):
                stopping = self._deadline is not None
                if stopping or self.streams.waiting or self.engines.working:
                    return bool(self.streams.open or not stopping)
                self._changed.wait(IDLE_POLL)
                if self.streams.open:
                    self._idle_since = time.monotonic()
                model, idle = self.engines.model, time.monotonic() - self._idle_since
                if model is not None and idle > self._unload_after:
                    logger.info("idle: unloading %s until the next request", model.name)
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
        self.reading.store.slots = self.engines.slots
        for job in jobs:
            self.reading.begin(job, model)

    def _work(self) -> None:
        """Begin the jobs that have been read, then run one step of each engine with work."""
        for job, future in self.reading.done():
            self._begin(job, future)
        if not self.engines.working and self.in_flight:  # only the readers have work
            with self._changed:
                if not (self.jobs.cancelled or self._deadline or self.streams.waiting):
                    self._changed.wait(READING_POLL)
        if self.engines.model is None:
            return
        for step in self.engines.transcriber.step():
            self.counts.steps += 1
            self.counts.filled_slots += step.filled
            self.counts.preemptions += step.preemptions
            self.counts.busy_seconds += step.seconds

    def _begin(self, job: Job, future: "Future[AnyRecording]") -> None:
        """Submit a recording that has been read."""
        try:
            recording = future.result()
        except NoRoomError:  # it is read again later
            self.reading.drop(job)
            with self._changed:
                self.jobs.enqueue(job)
            return
        except Exception as error:
            if not isinstance(error, SlimWhisperError):
                logger.error("a recording could not be read", exc_info=error)
            self._fail([job], wrap_unexpected(error))
            return
        job.recording, job.state = recording, JobState.RUNNING
        job.emit(JobStarted(recording.seconds))
        call = Call(self.engines.transcriber, search_of(recording.options), emit=self._receive)
        job.submission = call.submit(RecordingSource(recording), job)

    def _receive(self, event: Event) -> None:
        match event:
            case Progress(job) | Finished(job) | Failed(job) if job.ended:
                pass
            case Progress(job):
                job.emit(event)
            case Finished(job):
                self._end(job, event)
            case Failed(job, error, of_engine):
                if of_engine:
                    logger.error("the engine failed", exc_info=error)
                self._fail([job], wrap_unexpected(error))

    def _end(self, job: Job, event: Finished | Failed | None) -> None:
        """Remove a job and emit its last event; None: it was cancelled, which emits nothing."""
        with self._changed:
            if job.ended:
                return
            if isinstance(event, Finished):
                assert job.recording is not None
                self.counts.finished += 1
                self.counts.audio_seconds += job.recording.seconds
            elif event is not None:
                self.counts.failed += 1
            else:
                self.counts.cancelled += 1
            job.state = JobState.ENDED
            self.jobs.drop(job)
        self.reading.drop(job)
        if (submission := job.submission) is not None:
            self.engines.transcriber.cancel(submission)
        job.submission = None  # a reference to the job must not keep the engine alive
        if event is not None:
            job.emit(event)

    def _fail(self, jobs: Iterable[Job], error: SlimWhisperError) -> None:
        for job in jobs:
            self._end(job, Failed(job, error))
