"""The `transcribe` command: reads recordings, prints transcripts and writes output files."""

import argparse
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from itertools import chain, takewhile
from threading import Event, Thread
from typing import Any

from slimwhisper.errors import OutputError, SlimWhisperError
from slimwhisper.jobs.console import LogHandler
from slimwhisper.jobs.inputs import Inputs
from slimwhisper.jobs.interrupts import StopNow
from slimwhisper.jobs.ledger import Ledger
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.progress import model_facts
from slimwhisper.jobs.results.sinks import Ended, write_result
from slimwhisper.jobs.survey import survey
from slimwhisper.storage.files import InputFile

# transcribes recordings, writes their outputs, and tells a ledger what happens meanwhile
Outcomes = Generator[tuple[InputFile, Ended], None, None]
Engine = Callable[[JobPlan, Iterator[InputFile], Ledger], Outcomes]


def run_transcribe(flags: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`.

    A file that fails is reported in one line, and the job continues.
    """
    return run_job(JobPlan(flags), transcribe_here)


def run_job(plan: JobPlan, engine: Engine) -> int:
    """Run a job and print its summary; returns the exit status."""
    console = plan.open_console()
    for warning in plan.warnings:
        console.warning(warning)
    ledger = Ledger(plan, console)
    status = 0
    try:
        if plan.report is not None:
            plan.report.prepare()
        with ExitStack() as stack:
            stack.enter_context(ledger.interrupts.caught())
            stack.enter_context(closing(console))
            logger, handler = logging.getLogger("slimwhisper"), LogHandler(console)
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            try:
                _run(plan, engine, ledger)
            except StopNow as stop:
                status = stop.status
            except SlimWhisperError as error:
                with suppress(OutputError):
                    ledger.write_report([f"The job ended with an error: {error}"])
                raise
    except SlimWhisperError as error:
        if plan.flags.log_json:  # programs that read JSON lines are told what ends the job
            console.error(str(error))
        raise
    return ledger.summarise(status or ledger.interrupts.status)


def _run(plan: JobPlan, engine: Engine, ledger: Ledger) -> None:
    """Transcribe what is found and not done."""
    found = _found(plan, ledger)
    first = next(found, None)
    if first is None:
        return
    plan.files.folder.check()
    with ExitStack() as stack:
        if (journal := plan.open_journal()) is not None:
            ledger.journal = stack.enter_context(closing(journal))
            if plan.report is not None:
                plan.report.remember(journal.records())
        ledger.sink = stack.enter_context(closing(plan.open_sink(journal)))
        wanted = takewhile(lambda _: not ledger.stopping(), chain([first], found))
        pending = filter(ledger.starts, wanted)
        start = next(pending, None)  # load the model only if there is work
        if start is None:
            return
        _start_survey(plan, ledger, stack)
        with closing(engine(plan, chain([start], pending), ledger)) as results:
            for recording, ended in results:
                ledger.ended(recording, ended)
                if ledger.halted:
                    break


def transcribe_here(plan: JobPlan, recordings: Iterator[InputFile], ledger: Ledger) -> Outcomes:
    """The engine of a job in this process."""
    model, current = plan.load_model(), ledger.tally.current
    batch_size = plan.flags.batch_size
    if batch_size is None and plan.inputs.is_one_file and not plan.flags.parallel:
        batch_size = 1  # it decodes one window after the other: caches for more are not needed
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
            yield recording, write_result(ledger.sink.write, recording, result)
    facts |= asdict(model.text_memory())


def _found(plan: JobPlan, ledger: Ledger) -> Iterator[InputFile]:
    """The recordings that the arguments name; reports errors."""
    for found in plan.recordings():
        if isinstance(found, InputFile):
            yield found
        else:
            ledger.unfound(found)
            if ledger.halted:
                return


def _start_survey(plan: JobPlan, ledger: Ledger, stack: ExitStack) -> None:
    """Let a thread find out how long the recordings are, if that is shown and can be known."""
    shown = ledger.console.has_bar or plan.flags.engine == "ray"
    if not shown or not isinstance(plan.inputs, Inputs) or plan.inputs.is_list:
        return
    end, sink = Event(), ledger.sink
    files = (found for found in plan.recordings() if isinstance(found, InputFile))
    new = (file.local for file in files if file.local and sink.done_before(file) is None)
    thread = Thread(target=survey, args=(new, ledger.tally, end), name="survey", daemon=True)
    thread.start()
    stack.callback(thread.join, 1)  # a header may hang
    stack.callback(end.set)
