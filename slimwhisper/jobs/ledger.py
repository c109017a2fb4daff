"""What a job has done so far: its tally, marks, report and console, each told one event at a time.

Recordings are found in whichever thread an engine reads its sources in, and end in the main thread:
a lock makes every event one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.jobs.console import Console
from slimwhisper.jobs.decoding_flags import changed
from slimwhisper.jobs.interrupts import Interrupts
from slimwhisper.jobs.journal.identity import identify_precision
from slimwhisper.jobs.journal.journal import Journal
from slimwhisper.jobs.journal.logs import JournalError
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.jobs.progress import Current, Tally, model_terms, summary_facts, summary_lines
from slimwhisper.jobs.results.sinks import Ended, Sink
from slimwhisper.storage.files import InputFile, StoredFile
from slimwhisper.types import Segment, Transcript

STOPPED = "The job was stopped early. Run the same command again to resume."


class Ledger:
    """See above. `sink` and `journal` are set once there is something to do."""

    sink: Sink
    journal: Journal | None = None

    def __init__(self, plan: JobPlan, console: Console) -> None:
        self.tally = Tally()
        self.halted = False  # something failed, with --fail_fast
        self.facts: dict[str, Any] | None = None  # about the model, once it is loaded
        # the recordings that would be finished after an interrupt
        self.in_progress: Callable[[], int] = lambda: 0
        self.interrupts = Interrupts(lambda: self.in_progress(), quiet=plan.flags.log_json)
        self.console = console
        self._plan = plan
        self._lock = RLock()
        self._next_progress = 0.0

    def stopping(self) -> bool:
        """Whether no more recordings are to start."""
        return self.halted or self.interrupts.requested

    def unfound(self, error: SlimWhisperError) -> None:
        """Something that the arguments name cannot be found, listed or written."""
        with self._lock:
            self.tally.failed += 1
            self.console.error(str(error))
            if (report := self._plan.report) is not None:
                report.add("", None, error)
            self.halted |= self._plan.flags.fail_fast

    def starts(self, recording: InputFile) -> bool:
        """Whether a recording has to be transcribed; if so, it is in progress from now on."""
        with self._lock:
            match before := self.sink.done_before(recording):
                case None:
                    self.tally.current[recording.path] = Current(recording)
                    return True
                case "done":
                    self.tally.skipped += 1
                case _:
                    self.tally.failed_earlier += 1
            if (report := self._plan.report) is not None:
                report.settled(recording, before, self.sink)
            return False

    def loaded(self, facts: dict[str, Any]) -> None:
        """A model of these `model_facts` is loaded, and the clock starts; or another worker's.

        Raises OptionError if that computes otherwise than the first.
        """
        precision = identify_precision(facts["dtype"], facts["device"])
        if self.facts is not None:
            ours = identify_precision(self.facts["dtype"], self.facts["device"])
            if ours != precision:
                raise OptionError(
                    f"workers differ ({ours}, {precision}); "
                    "choose one --dtype, and --device cuda or cpu"
                )
            return
        self.facts = facts
        if self.journal is not None:
            self.journal.record_variant(precision)
        self.console.start(facts | {"options": changed(self._plan.options)})
        self.tally.began = time.perf_counter()

    def duration(self, path: Path | StoredFile, seconds: float) -> None:
        """A recording has been opened, and has this length."""
        self.tally.current[path].seconds = seconds
        self.tally.loaded += seconds
        self._progress()

    def segments(self, path: Path | StoredFile, segments: list[Segment], done: float) -> None:
        """More of a recording has been decoded, up to `done` seconds."""
        self.tally.current[path].done = done
        self.console.segments(path, segments)
        self._progress()

    def ended(self, recording: InputFile, ended: Ended) -> None:
        """A recording has ended: mark it, then it is told and counted. Raises JournalError."""
        tally, path = self.tally, recording.path
        current = tally.current[path]
        if ended.seconds is None:
            known = current.seconds is None
            ended = replace(ended, seconds=(current.done or None) if known else current.seconds)
        if ended.elapsed is None:
            ended = replace(ended, elapsed=time.perf_counter() - current.began)
        if ended.status == "done":
            try:
                self.sink.mark(recording, ended)
            except JournalError:
                raise
            except OutputError as error:
                ended = replace(ended, status="unwritten", result=error, outputs=())
        with self._lock:
            if isinstance(ended.result, Transcript):
                spoken = [s for s in ended.result.segments if s.text.strip()]
                tally.done += 1
                tally.segments += len(spoken)
                tally.flagged += sum(bool(s.flags) for s in spoken)
            else:
                tally.failed += 1
                self.halted |= self._plan.flags.fail_fast
            self.console.ended(path, ended)
            if (report := self._plan.report) is not None:
                report.add(path, ended.seconds, ended.result)
            if ended.status != "done":
                # after it was told: if the job is killed in between, the error appears twice
                # rather than never
                self.sink.mark(recording, ended)
            tally.audio += ended.seconds or 0.0
            del tally.current[path]
        self._progress()

    def _progress(self) -> None:
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + self.console.interval
            self.console.progress(self.tally)

    def summarise(self, status: int) -> int:
        """Write the report and print the summary; returns the exit status."""
        if not status and (self.tally.failed or self.tally.failed_earlier):
            status = 1
        try:
            self.write_report([STOPPED] if status > 1 else [])
        except OutputError as error:
            self.console.error(str(error))
            status = status or 1
        facts = summary_facts(self.tally, status, self.journal.path if self.journal else None)
        if (report := self._plan.report) is not None:
            facts["report"] = str(report.path)
        self.console.summary(facts, summary_lines(facts, self.facts))
        return status

    def write_report(self, notices: Sequence[str]) -> None:
        """Write the report, if there is one, with these lines at its top. Raises OutputError."""
        if (report := self._plan.report) is not None:
            terms = model_terms(self.facts, self._plan.flags.model)
            report.write(notices, terms, self._plan.options_shown())
