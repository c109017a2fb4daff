"""`transcribe --engine ray`: the job of one host, decoded by workers of Ray."""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.flags import model_arguments
from slimwhisper.jobs.flags import dtype_of
from slimwhisper.jobs.identity import identify_precision
from slimwhisper.jobs.inputs import InputFile, StoredArguments
from slimwhisper.jobs.job import Job, run_job
from slimwhisper.jobs.sinks import write_result
from slimwhisper.ray.cluster import RayCluster, started
from slimwhisper.ray.driver import LOOKAHEAD, Driver, Listeners, ReadAhead, Up
from slimwhisper.ray.listing import list_shards
from slimwhisper.ray.plan import Plan
from slimwhisper.ray.results import Ended, FeedCounts, Settings
from slimwhisper.storage.files import StoredFile
from slimwhisper.types import Transcript

BYTES_PER_SECOND = 32_000  # of a WAV file at 16 kHz, where sizes and durations are compared


def run_transcribe_on_ray(arguments: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`."""
    return run_job(RayJob(arguments))


class RayJob(Job):
    """Inputs, sink, journal and console are those of `Job`; workers decode, and write by sinks of
    their own (`slimwhisper.jobs.sinks` says who marks).
    """

    _driver: Driver | None = None
    _plan: Plan | None = None  # once Ray has started

    def _transcribe(self, stack: ExitStack) -> None:
        if isinstance(self.inputs, StoredArguments):  # to list them
            self._plan = stack.enter_context(started(self.arguments))
        super()._transcribe(stack)

    def _listed(self) -> Iterator[InputFile | SlimWhisperError]:
        if isinstance(self.inputs, StoredArguments):
            return self.inputs.files(list_shards(self.inputs.shards()))
        return super()._listed()

    def _decode(self, recordings: Iterator[Path | StoredFile], stack: ExitStack) -> None:
        plan = self._plan or stack.enter_context(started(self.arguments))
        cluster = RayCluster(self._settings(plan.threads), plan)
        listeners = Listeners(
            up=lambda up: self._on_up(up, stack),
            started=self._on_started,
            ended=self._on_ended,
            counts=self._on_counts,
            stopping=lambda: self.interrupts.requested or self._halted,
        )
        found = (self.tally.current[path].recording for path in recordings)
        source = ReadAhead(found, LOOKAHEAD)
        driver = Driver(cluster, source, listeners, self._weight)
        with closing(cluster), closing(source):
            self._driver = driver
            driver.run()
        self.sink.sweep(driver.unclean)

    def _settings(self, threads: int) -> Settings:
        a = self.arguments
        return Settings(
            folder=str(Path.cwd()),
            load={"name": a.model} | model_arguments(a) | {"dtype": dtype_of(a)},
            threads=threads,
            batch_size=a.batch_size,
            loaders=self._loaders(),
            allow_truncated=a.allow_truncated,
            options=self.options,
            output_dir=a.output_dir,
            output_format=a.output_format,
            layout=self.layout,
            with_text=a.verbose or self.sink.is_table or self.report is not None,
        )

    def _weight(self, recording: InputFile) -> float:
        path = recording.path
        if isinstance(path, StoredFile) and path.duration is not None:
            return path.duration * BYTES_PER_SECOND
        return float(self.tally.current[path].stamp.size or 0)

    def _in_progress(self) -> int:
        return self._driver.in_progress if self._driver is not None else 0

    def _on_up(self, up: Up, stack: ExitStack) -> None:
        facts = up.facts
        if self.facts is None:
            for warning in up.warnings:
                self.console.warning(warning)
            self._begin(facts, stack)
            return
        ours = identify_precision(self.facts["dtype"], self.facts["device"])
        theirs = identify_precision(facts["dtype"], facts["device"])
        if ours != theirs:
            raise OptionError(
                f"workers differ: {ours['dtype']} on a {ours['device']}, {theirs['dtype']} on a "
                f"{theirs['device']}; choose one --dtype, and --device cuda or cpu"
            )

    def _on_started(self, recording: InputFile) -> None:
        self.tally.current[recording.path].began = time.perf_counter()

    def _on_ended(self, ended: list[Ended]) -> None:
        settled = []
        for one in ended:
            current = self.tally.current[one.recording.path]
            current.seconds = one.seconds
            self.tally.loaded += one.seconds or 0.0
            written = one.written
            if self.sink.is_table and written.status == "done":  # its row is ours to write
                written = write_result(self.sink, one.recording, written.result)
            settled.append((current, written))
            if self.arguments.verbose and isinstance(written.result, Transcript):
                self.console.segments(one.recording.path, written.result.segments)
        self._settle(settled)

    def _on_counts(self, worker: int, counts: FeedCounts | None) -> None:
        if counts is None:
            self.tally.fill.pop(worker, None)
        else:
            self.tally.fill[worker] = counts.fill
        self._progress()
