"""The `transcribe` command: reads recordings, prints transcripts and writes output files."""

import argparse
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.errors import AudioError, OptionError, OutputError, SlimWhisperError
from slimwhisper.flags import load_chosen
from slimwhisper.jobs.console import Console, JSONConsole, LogHandler, TerminalConsole
from slimwhisper.jobs.decoding_flags import changed, options_of
from slimwhisper.jobs.flags import check_engine, dtype_of, layout_of
from slimwhisper.jobs.inputs.inputs import InputFile, Inputs, StoredArguments
from slimwhisper.jobs.interrupts import Interrupts, StopNow
from slimwhisper.jobs.journal.identity import (
    accepted_precisions,
    identify_job,
    identify_precision,
    may_have_settings,
)
from slimwhisper.jobs.journal.journal import Journal, Status
from slimwhisper.jobs.progress import (
    Current,
    Tally,
    model_facts,
    model_terms,
    summary_facts,
    summary_lines,
)
from slimwhisper.jobs.results.files import check_names
from slimwhisper.jobs.results.marks import Mark, Written
from slimwhisper.jobs.results.report import Earlier, Report
from slimwhisper.jobs.results.sinks import open_sink, write_result
from slimwhisper.jobs.survey import Survey
from slimwhisper.outputs.layout import check_layout
from slimwhisper.storage.files import StoredFile
from slimwhisper.storage.inputs import are_stored
from slimwhisper.storage.stamps import Stamp
from slimwhisper.types import Segment, Transcript

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from slimwhisper.api import SlimWhisper

STOPPED = "The job was stopped early. Run the same command again to resume."


def run_transcribe(arguments: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`.

    A file that fails is reported in one line, and the job continues.
    """
    return run_job(Job(arguments))


def run_job(job: "Job") -> int:
    """Run a job; programs that read JSON lines are told what ends it."""
    try:
        return job.run()
    except SlimWhisperError as error:
        if job.arguments.log_json:
            job.console.error(str(error))
        raise


class Job:
    """One run of the command, from its arguments to its summary.

    Files are found in whichever thread `transcribe_many` reads its sources in, and finished in the
    main thread. State that both use is protected by `_lock` or changed by only one of them.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        check_engine(arguments)
        self.options = options_of(arguments)
        self.layout = layout_of(arguments)
        with_words = arguments.word_timestamps or arguments.sentences or bool(arguments.diarize)
        warnings = check_layout(self.layout, with_words)
        if arguments.skip_existing and arguments.overwrite:
            raise OptionError("--skip_existing and --overwrite exclude each other; choose one")
        if arguments.threads < 0:
            raise OptionError(f"threads {arguments.threads} is not a positive number, or 0 for all")
        self.report = Report(arguments.report) if arguments.report is not None else None
        self.sink = open_sink(arguments.output_dir, arguments.output_format, self.layout)
        self.inputs = self._read_inputs()
        self.console = self._open_console()
        self.tally = Tally()
        self.journal: Journal | None = None
        self.facts: dict[str, Any] | None = None  # about the model, once it is loaded
        self.survey: Survey | None = None
        self.interrupts = Interrupts(self._in_progress, quiet=arguments.log_json)
        self._running = False  # files in progress would be finished after an interrupt
        self._halted = False  # something failed, with --fail_fast
        self._lock = threading.RLock()
        for warning in warnings:
            self.console.warning(warning)

    def run(self) -> int:
        """Run the job and print its summary; returns the exit status."""
        status = 0
        if self.report is not None:
            self.report.prepare()
        with ExitStack() as stack:
            stack.enter_context(self.interrupts)
            stack.enter_context(closing(self.console))
            logger, handler = logging.getLogger("slimwhisper"), LogHandler(self.console)
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            try:
                self._transcribe(stack)
            except StopNow as stop:
                status = stop.status
            except SlimWhisperError as error:
                with suppress(OutputError):
                    self._write_report([f"The job ended with an error: {error}"])
                raise
        status = status or self.interrupts.status
        if not status and (self.tally.failed or self.tally.failed_earlier):
            status = 1
        return self._summarise(status)

    def _transcribe(self, stack: ExitStack) -> None:
        found = self._found()
        first = next(found, None)
        if first is None:
            return
        self.sink.prepare()
        self._open_journal(stack)
        pending = self._pending(chain([first], found))
        start = next(pending, None)  # load the model only if there is work
        if start is None:
            return
        self._decode(chain([start], pending), stack)

    def _decode(self, recordings: Iterator[Path | StoredFile], stack: ExitStack) -> None:
        """Transcribe the recordings, which are in progress already, in this process."""
        model = self._load()
        batch_size = self.arguments.batch_size
        if batch_size is None and self.inputs.is_one_file and not self.arguments.parallel:
            batch_size = 1  # it decodes one window after the other: caches for more are not needed
        if batch_size is None:
            batch_size = model.default_batch_size(**self.options)
        self._begin(model_facts(model, batch_size), stack)
        results: Any = model.transcribe_many(
            recordings,
            batch_size=batch_size,
            allow_truncated=self.arguments.allow_truncated,
            loaders=self._loaders(),
            on_segments=self._on_segments,
            on_duration=self._on_duration,
            **self.options,
        )
        self._running = True
        with closing(results):
            for path, result in results:
                self._finish(self.tally.current[path], result)
                if self._halted:
                    break

    def _begin(self, facts: dict[str, Any], stack: ExitStack) -> None:
        """The model of these facts is loaded: record and show that, and start the clock."""
        self.facts, a = facts, self.arguments
        if self.journal is not None:
            self.journal.record_variant(identify_precision(facts["dtype"], facts["device"]))
        self.console.start(facts | {"options": changed(self.options)})
        wanted = self.console.has_bar or a.engine == "ray"
        if wanted and isinstance(self.inputs, Inputs) and not self.inputs.is_list:
            self.survey = Survey(self._read_inputs().files, self._is_new)
            self.survey.start()
            stack.enter_context(closing(self.survey))
        self.tally.start()

    def _open_console(self) -> Console:
        verbose = self.arguments.verbose
        if self.arguments.log_json:
            return JSONConsole(verbose=verbose)
        return TerminalConsole(verbose=verbose, live=verbose and self.inputs.is_one_file)

    def _open_journal(self, stack: ExitStack) -> None:
        """Start the sink, with a journal if this job keeps one; by default, one of plain files does
        not.
        """
        a = self.arguments
        wanted = self.inputs.is_job or self.sink.is_table  # a table has its own marks
        if a.journal or (a.journal is None and wanted):
            decoding = self.options if may_have_settings(a.model) else changed(self.options)
            self.journal = Journal(
                self.sink.journal_place,
                identify_job(a, self.sink.formats, decoding | self.layout),
                variants=accepted_precisions(dtype_of(a), a.device),
                forget=a.overwrite,
            )
            stack.enter_context(closing(self.journal))
            if self.report is not None:
                self.report.earlier = Earlier(self.journal.records())
        self.sink.start(self.journal)
        stack.enter_context(closing(self.sink))

    def _read_inputs(self) -> Inputs | StoredArguments:
        a = self.arguments
        if are_stored(a.audio):
            return StoredArguments(a.audio, self.sink.root, a.audio_column)
        stdin = sys.stdin.buffer if "-" in a.audio else None
        return Inputs(a.audio, self.sink.root, stdin)

    def _load(self) -> "SlimWhisper":
        a = self.arguments
        if a.threads:
            import torch

            torch.set_num_threads(a.threads)
        return load_chosen(a, dtype=dtype_of(a))

    def _found(self) -> Iterator[InputFile]:
        """The recordings that the arguments name; reports what cannot be found or listed."""
        for found in self._listed():
            if isinstance(found, InputFile):
                try:
                    check_names(found, self.sink.formats, self.sink.longest_name)
                except AudioError as error:
                    found = error
                else:
                    yield found
                    continue
            with self._lock:
                self.tally.failed += 1
                self.console.error(str(found))
                if self.report is not None:
                    self.report.failed("", None, str(found))
            if self.arguments.fail_fast:
                self._halted = True
                return

    def _listed(self) -> Iterator[InputFile | SlimWhisperError]:
        return self.inputs.files()

    def _pending(self, recordings: Iterator[InputFile]) -> Iterator[Path | StoredFile]:
        """The recordings that still have to be transcribed; adds them to those in progress."""
        for recording in recordings:
            if self.interrupts.requested or self._halted:
                return
            stamp = recording.stamp()
            with self._lock:
                if recording.path in self.tally.current:
                    continue  # listed twice
                match settled := self._settled(recording, stamp):
                    case "done":
                        self.tally.skipped += 1
                    case "failed":
                        self.tally.failed_earlier += 1
                    case _:
                        self.tally.current[recording.path] = Current(recording, stamp)
            if settled is None:
                yield recording.path
            # what this run has done is in the report already
            elif self.report is not None and self._settled(recording, stamp, before=True):
                self.report.settled(recording, stamp, settled, self.sink)

    def _settled(
        self, recording: InputFile, stamp: Stamp, *, before: bool = False
    ) -> Status | None:
        """The status of a recording that needs no work; `before`: from an earlier run only."""
        status = self.journal.status(stamp, before=before) if self.journal else None
        if status == "failed":
            return None if self.arguments.retry_failed else status
        if status == "done" or self.arguments.skip_existing:
            return "done" if self.sink.exists(recording, marked=status == "done") else None
        return None

    def _is_new(self, recording: InputFile) -> bool:
        return self._settled(recording, recording.stamp(), before=True) is None

    def _on_duration(self, path: Path | StoredFile, seconds: float) -> None:
        self.tally.current[path].seconds = seconds
        self.tally.loaded += seconds
        self._progress()

    def _on_segments(self, path: Path | StoredFile, segments: list[Segment], done: float) -> None:
        self.tally.current[path].done = done
        self.console.segments(path, segments)
        self._progress()

    def _progress(self) -> None:
        if self.survey is not None:
            self.tally.surveyed = self.survey.seconds
            self.tally.complete = self.survey.complete
        self.console.progress(self.tally)

    def _finish(self, current: Current, result: Transcript | SlimWhisperError) -> None:
        """Write a file's outputs, and settle it."""
        if current.seconds is None and current.done:
            current.seconds = current.done
        self._settle([(current, write_result(self.sink, current.recording, result))])

    def _settle(self, ended: Sequence[tuple[Current, Written]]) -> None:
        """Report files that have ended, and mark them, in one write."""
        for current, written in ended:
            if isinstance(written.result, SlimWhisperError):
                # report before adding to the journal: if the job is killed in between, the error
                # appears twice rather than never
                with self._lock:
                    self.tally.failed += 1
                    self.console.failed(current, written.status, written.result)
                    if self.report is not None:
                        error = str(written.result)
                        self.report.failed(current.recording.path, current.seconds, error)
                self._halted = self._halted or self.arguments.fail_fast
        self.sink.mark([Mark(c.recording, c.stamp, c.seconds, written) for c, written in ended])
        for current, written in ended:
            seconds = current.seconds or 0.0
            if isinstance(written.result, Transcript):
                self.tally.done += 1
                self.tally.audio += seconds
                self.tally.segments += written.segments
                self.tally.flagged += written.flagged
                self.console.done(current, written.result, written.outputs)
                if self.report is not None:
                    self.report.done(current.recording.path, current.seconds, written.result)
            self.tally.passed += seconds
            with self._lock:
                del self.tally.current[current.recording.path]
        self._progress()

    def _loaders(self) -> int | None:
        """The processes asked for; by default none for plain files: they take a moment to start."""
        asked: int | None = self.arguments.loaders
        return 0 if asked is None and not self.inputs.is_job else asked

    def _in_progress(self) -> int:
        return len(self.tally.current) if self._running else 0

    def _summarise(self, status: int) -> int:
        """Write the report and print the summary; returns the exit status."""
        try:
            self._write_report([STOPPED] if status > 1 else [])
        except OutputError as error:
            self.console.error(str(error))
            status = status or 1
        facts = summary_facts(self.tally, status, self.journal.path if self.journal else None)
        if self.report is not None:
            facts["report"] = str(self.report.path)
        self.console.summary(facts, summary_lines(facts, self.facts))
        return status

    def _write_report(self, notices: list[str]) -> None:
        if self.report is not None:
            with closing(self.report):
                options = changed(self.options) | self.layout
                self.report.write(notices, model_terms(self.facts, self.arguments.model), options)
