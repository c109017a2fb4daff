"""Runs the `transcribe` command: reads recordings, prints transcripts and writes output files."""

import argparse
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from itertools import chain, takewhile
from pathlib import Path
from threading import Event, Thread
from typing import Any

from slimwhisper.errors import OutputError, SlimWhisperError
from slimwhisper.files import InputFile
from slimwhisper.jobs.inputs import Inputs
from slimwhisper.jobs.ledger import Ledger, StopNow
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.progress import JobTotals, LogHandler, model_facts
from slimwhisper.jobs.results.writers import RecordingResult, write_result
from slimwhisper.options import Options

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
            stack.enter_context(ledger.catch_signals())
            stack.enter_context(closing(console))
            logger, handler = logging.getLogger("slimwhisper"), LogHandler(console)
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
    model, current = plan.load_model(), ledger.totals.current
    batch_size = plan.batch_size
    if batch_size is None and plan.inputs.is_one_file and not plan.options.get("parallel"):
        # its windows depend on each other, so more caches would be unused
        batch_size = Options(channels=plan.options.get("channels")).windows_of_one
    if batch_size is None:
        batch_size = model.default_batch_size(**plan.options)
    facts = model_facts(model, batch_size)
    ledger.loaded(facts)
    results: Any = model.transcribe_many(
        (recording.path for recording in recordings),
        batch_size=batch_size,
        on_segments=ledger.segments,
        on_duration=ledger.duration,
        **plan.decoding(),
    )
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
    entries = plan.recordings(plan.read_inputs())
    files = (entry for entry in entries if isinstance(entry, InputFile))
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
        for path in paths:
            if end.is_set():
                return
            totals.surveyed += header_seconds(path)
        totals.complete = True


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
