"""Runs the `transcribe` command: reads recordings, prints transcripts and writes output files.

A `Ledger` keeps account of a running job: it passes each event to the totals, results, report and
console. Recordings are found in the thread in which an engine reads its sources, and end in the
main thread; a lock keeps each event atomic.
"""

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from errno import EDQUOT, ENOSPC
from itertools import chain, takewhile
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.files import InputFile
from slimwhisper.flags import signals_to
from slimwhisper.jobs.flags import changed
from slimwhisper.jobs.inputs import Inputs
from slimwhisper.jobs.journal import Journal, JournalError, identify_precision
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.progress import (
    Console,
    FileProgress,
    JobTotals,
    LogHandler,
    model_facts,
    model_terms,
    summary_facts,
    summary_lines,
)
from slimwhisper.jobs.writers import JobResults, RecordingResult, write_result
from slimwhisper.options import Options
from slimwhisper.types import Segment, Transcript

STOPPED = "The job was stopped early. Run the same command again to resume it."


class StopNow(KeyboardInterrupt):
    """Raised in the main thread to stop immediately; unfinished outputs are removed."""


class Ledger:
    """See the module. `results` and `journal` are set once there is a recording to transcribe."""

    results: JobResults
    journal: Journal | None = None

    def __init__(self, plan: JobPlan, console: Console) -> None:
        self.totals = JobTotals()
        self.halted = False  # something failed, with --fail_fast
        self.facts: dict[str, Any] | None = None  # about the model, once it is loaded
        # the recordings that would be finished after an interrupt
        self.in_progress: Callable[[], int] = lambda: 0
        self.signal = 0  # that has arrived: start no more files
        self.console = console
        self._plan = plan
        self._lock = threading.RLock()
        self._next_progress = 0.0

    def stopping(self) -> bool:
        """Whether no more recordings may start."""
        return self.halted or self.signal > 0

    def signalled(self, number: int, _: FrameType | None) -> None:
        """The first SIGINT finishes the files in progress, if there are any; a second one, or
        SIGTERM, raises StopNow.
        """
        first, self.signal = not self.signal, number
        files = self.in_progress()
        if number == signal.SIGTERM or not first or not files:
            raise StopNow
        if not self._plan.log_json:
            # unbuffered: the signal may have interrupted a write to sys.stderr
            line = f"finishing {files} file{'s' * (files > 1)} in progress"
            with suppress(OSError):
                os.write(2, f"\nslimwhisper: {line}; press Ctrl-C again to stop now\n".encode())

    def input_failed(self, error: SlimWhisperError) -> None:
        """An input cannot be found or listed, or its outputs cannot be written."""
        with self._lock:
            self.totals.failed += 1
            self.console.error(str(error))
            if (report := self._plan.report) is not None:
                report.add("", None, error)
            self.halted |= self._plan.fail_fast

    def should_start(self, recording: InputFile) -> bool:
        """Whether a recording has to be transcribed; if so, it counts as in progress."""
        with self._lock:
            match earlier := self.results.earlier_status(recording):
                case None:
                    self.totals.current[recording.path] = FileProgress(recording)
                    return True
                case "done":
                    self.totals.skipped += 1
                case _:
                    self.totals.failed_earlier += 1
            if (report := self._plan.report) is not None:
                report.add_earlier(recording, earlier, self.results.files)
            return False

    def loaded(self, facts: dict[str, Any]) -> None:
        """A model with these `model_facts` has been loaded; the first one starts the clock.

        Raises OptionError if another worker's model has another precision than the first.
        """
        precision = identify_precision(facts["dtype"], facts["device"])
        if self.facts is not None:
            first = identify_precision(self.facts["dtype"], self.facts["device"])
            if first != precision:
                remedy = "give --dtype, and --device cuda or cpu"
                raise OptionError(f"workers differ in precision ({first}, {precision}); {remedy}")
            return
        self.facts = facts
        if self.journal is not None:
            self.journal.record_variant(precision)
        self.console.start(facts | {"options": changed(self._plan.options)})
        self.totals.began = time.perf_counter()

    def duration(self, path: Path | RemoteFile, seconds: float) -> None:
        """A recording has been opened, and has this length."""
        self.totals.current[path].seconds = seconds
        self.totals.loaded += seconds
        self._progress()

    def segments(self, path: Path | RemoteFile, segments: list[Segment], done: float) -> None:
        """More of a recording has been decoded, up to `done` seconds."""
        self.totals.current[path].done = done
        self.console.segments(path, segments)
        self._progress()

    def ended(self, recording: InputFile, outcome: RecordingResult) -> None:
        """A recording has ended: record, report and count it. Raises JournalError."""
        totals, path = self.totals, recording.path
        current = totals.current[path]
        if outcome.seconds is None:
            outcome = replace(outcome, seconds=current.seconds)
        if outcome.elapsed is None:
            outcome = replace(outcome, elapsed=time.perf_counter() - current.began)
        if outcome.status == "done":
            try:
                self.results.record(recording, outcome)
            except JournalError:
                raise
            except OutputError as error:
                outcome = replace(outcome, status="unwritten", result=error, outputs=())
        with self._lock:
            if isinstance(outcome.result, Transcript):
                spoken = [s for s in outcome.result.segments if s.text.strip()]
                totals.done += 1
                totals.segments += len(spoken)
                totals.flagged += sum(bool(s.flags) for s in spoken)
                totals.dropped += len(outcome.result.dropped)
            else:
                totals.failed += 1
                self.halted |= self._plan.fail_fast
                number = getattr(outcome.result.__context__, "errno", None)
                if outcome.status == "unwritten" and number in (ENOSPC, EDQUOT):
                    self.halted = True  # there is no room for the others either
                    self.console.warning(STOPPED)
            self.console.ended(path, outcome)
            if (report := self._plan.report) is not None:
                report.add(path, outcome.seconds, outcome.result)
            if outcome.status != "done":
                # after it was reported: if the job is killed in between, the error is reported
                # twice rather than never
                self.results.record(recording, outcome)
            totals.audio += outcome.seconds or 0.0
            del totals.current[path]
        self._progress()

    def _progress(self) -> None:
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + self.console.interval
            self.console.progress(self.totals)

    def summarise(self) -> int:
        """Write the report and print the summary; returns the exit status."""
        moved = self.journal is not None and self.journal.log.moved
        status = 128 + self.signal if self.signal else 0
        if not status and (self.totals.failed or self.totals.failed_earlier or moved):
            status = 1
        report = self._plan.report
        try:
            self.write_report([STOPPED] if status > 1 else [])
        except OutputError as error:
            self.console.error(str(error))
            status, report = status or 1, None
        path = self.journal.log.path if self.journal else None
        facts = summary_facts(self.totals, status, path, self._plan.inputs.selection.left_out)
        if report is not None:
            facts["report"] = str(report.path)
        if (model := self.facts) and self.totals.done and self._plan.load["dtype"] is None:
            if model["fastest_dtype"] != model["dtype"]:
                facts["faster"] = model["fastest_dtype"]
        self.console.summary(facts, summary_lines(facts, self.facts))
        return status

    def write_report(self, notices: Sequence[str]) -> None:
        """Write the report, if there is one, with these lines at its top. Raises OutputError."""
        plan = self._plan
        if plan.report is not None:
            options = changed(plan.options) | dict(plan.files.layout)
            plan.report.write(notices, model_terms(self.facts, plan.model), options)


# transcribes recordings, writes their outputs, and reports progress to a ledger
Outcomes = Generator[tuple[InputFile, RecordingResult], None, None]
Engine = Callable[[JobPlan, Iterator[InputFile], Ledger], Outcomes]


def run_transcribe(flags: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`.

    A file that fails is reported in one line, and the job continues.
    """
    return run_job(JobPlan.of(flags), transcribe_locally)


def run_job(plan: JobPlan, engine: Engine) -> int:
    """Run a job and print its summary; returns the exit status."""
    console = plan.open_console()
    for warning in plan.warnings:
        console.warning(warning)
    ledger = Ledger(plan, console)
    try:
        if plan.report is not None:
            plan.report.prepare()
        with ExitStack() as stack:
            stack.enter_context(signals_to(ledger.signalled))
            stack.enter_context(closing(console))
            logger, handler = logging.getLogger("slimwhisper"), LogHandler(console.warning)
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            try:
                with suppress(StopNow):
                    _run(plan, engine, ledger)
            except SlimWhisperError as error:
                with suppress(OutputError):
                    ledger.write_report([f"The job ended with an error: {error}"])
                raise
    except SlimWhisperError as error:
        if plan.log_json:  # programs that read JSON lines need the reason, too
            console.error(str(error))
        raise
    return ledger.summarise()


def _run(plan: JobPlan, engine: Engine, ledger: Ledger) -> None:
    """Transcribe the recordings that are not done yet."""
    recordings = _recordings(plan, ledger)
    first = next(recordings, None)
    if first is None:
        return
    plan.files.sink.check()
    with ExitStack() as stack:
        if (journal := plan.open_journal()) is not None:
            ledger.journal = stack.enter_context(closing(journal))
            if plan.report is not None:
                plan.report.load_records(journal.records())
        ledger.results = stack.enter_context(closing(plan.open_results(journal)))
        unstopped = takewhile(lambda _: not ledger.stopping(), chain([first], recordings))
        pending = filter(ledger.should_start, unstopped)
        start = next(pending, None)  # load the model only if there is work
        if start is None:
            return
        _start_survey(plan, ledger, stack)
        with closing(engine(plan, chain([start], pending), ledger)) as results:
            for recording, outcome in results:
                ledger.ended(recording, outcome)
                if ledger.halted:
                    break


def transcribe_locally(plan: JobPlan, recordings: Iterator[InputFile], ledger: Ledger) -> Outcomes:
    """The engine of a job in this process."""
    batch_size = plan.batch_size
    if batch_size is None and plan.inputs.is_one_file and not plan.options.get("parallel"):
        # its windows depend on each other, so more caches would be unused
        batch_size = Options(channels=plan.options.get("channels")).windows_of_one
    model, current = plan.load_model(batch_size), ledger.totals.current
    if batch_size is None:
        batch_size = model.default_batch_size(**plan.options)
    facts = model_facts(model, batch_size)
    ledger.loaded(facts)
    paths = (recording.path for recording in recordings)
    how = {"on_segments": ledger.segments, "on_duration": ledger.duration, **plan.decoding()}
    results: Any = model.transcribe_many(paths, batch_size=batch_size, **how)
    ledger.in_progress = lambda: len(current)
    with closing(results):
        for path, result in results:
            recording = current[path].recording
            yield recording, write_result(ledger.results.write, recording, result)
    facts |= asdict(model.text_memory())


def _recordings(plan: JobPlan, ledger: Ledger) -> Iterator[InputFile]:
    """The recordings that the arguments name; reports those that cannot be found."""
    for entry in plan.recordings(plan.inputs):
        if isinstance(entry, InputFile):
            yield entry
        else:
            ledger.input_failed(entry)
            if ledger.halted:
                return


def _start_survey(plan: JobPlan, ledger: Ledger, stack: ExitStack) -> None:
    """Start a thread that adds up the recordings' lengths, if they are shown and can be read."""
    is_shown = ledger.console.has_bar or plan.engine == "ray"
    if not is_shown or not isinstance(plan.inputs, Inputs) or plan.stdin is not None:
        return
    end, results = Event(), ledger.results
    files = (e for e in plan.recordings(plan.read_inputs()) if isinstance(e, InputFile))
    new = (file.local for file in files if file.local and results.earlier_status(file) is None)
    thread = Thread(target=survey, args=(new, ledger.totals, end), name="survey", daemon=True)
    thread.start()
    stack.callback(thread.join, 1)  # a header may hang
    stack.callback(end.set)


def survey(paths: Iterable[Path], totals: JobTotals, end: Event) -> None:
    """Add the lengths of files to `totals.surveyed`, until `end` is set.

    Only the progress shows them, so an error ends the survey and not the job.
    """
    with suppress(Exception):
        for path in takewhile(lambda _: not end.is_set(), paths):
            totals.surveyed += header_seconds(path)
        totals.complete = not end.is_set()


def header_seconds(path: Path) -> float:
    """The length of a file's audio according to its header; 0 if unknown or unreadable."""
    if not path.is_file():  # what is read from a pipe is gone
        return 0.0
    import av  # slow: a single file needs it for some formats only

    # opened by Python, and without protocols, so that FFmpeg cannot treat a name as a URL
    allowed = {"protocol_whitelist": "none"}
    with suppress(OSError, ValueError, av.error.FFmpegError):
        with path.open("rb") as file, av.open(file, mode="r", options=allowed) as container:
            return max(0.0, (container.duration or 0) / 1_000_000)  # FFmpeg counts microseconds
    return 0.0
