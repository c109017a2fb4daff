"""`transcribe --engine ray`: the job of one host, decoded by workers of Ray."""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from slimwhisper.audio.read_ahead import Loader
from slimwhisper.errors import OptionError
from slimwhisper.flags import model_arguments
from slimwhisper.jobs.flags import dtype_of
from slimwhisper.jobs.inputs.inputs import InputFile, Inputs
from slimwhisper.jobs.job import Job, run_job
from slimwhisper.jobs.journal.identity import identify_precision
from slimwhisper.jobs.results.sinks import open_sink, write_result
from slimwhisper.ray.cluster import Workers, started
from slimwhisper.ray.transcriber import Transcriber
from slimwhisper.ray.worker import Ended, Ready
from slimwhisper.storage.files import StoredFile, longest_first
from slimwhisper.types import Transcript

LOOKAHEAD = 256  # recordings that are listed ahead of the workers


def run_transcribe_on_ray(arguments: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`."""
    return run_job(RayJob(arguments))


class RayJob(Job):
    """Inputs, sink, journal and console are those of `Job`; workers decode, and write by sinks of
    their own (`slimwhisper.jobs.results.sinks` says who marks).
    """

    _workers: Workers | None = None

    def _decode(self, recordings: Iterator[Path | StoredFile], stack: ExitStack) -> None:
        plan = stack.enter_context(started(self.arguments))
        found = (self.tally.current[path] for path in recordings)
        # the longest of some first; containers have them so already, and lists may be slow
        ahead = LOOKAHEAD if isinstance(self.inputs, Inputs) and not self.inputs.is_list else 0
        ordered = longest_first(((c.stamp.size, c.recording) for c in found), ahead)
        source = Loader(ordered, lambda _: None, LOOKAHEAD, 1)
        stack.callback(source.close, lambda _: None)
        a = self.arguments
        make_transcriber = partial(
            Transcriber,
            a.model,
            load=model_arguments(a) | {"dtype": dtype_of(a)},
            slots=a.batch_size,
            loaders=self._loaders(),
            allow_truncated=a.allow_truncated,
            **self.options,
        )
        make_sink = partial(open_sink, a.output_dir, a.output_format, self.layout)
        self._workers = Workers(plan, str(Path.cwd()), make_transcriber, make_sink)
        stack.callback(self._workers.close)
        self.tally.fill = self._workers.fill
        for ready, ended in self._workers.run(source, self._stopping):
            for one in ready:
                self._on_ready(one, stack)
            self._on_ended(ended)
        self.sink.sweep(self._workers.unclean)

    def _stopping(self) -> bool:
        return self.interrupts.requested or self._halted

    def _in_progress(self) -> int:
        return self._workers.scheduler.running if self._workers is not None else 0

    def _on_ready(self, ready: Ready, stack: ExitStack) -> None:
        facts = ready.facts
        if self.facts is None:
            for warning in ready.warnings:
                self.console.warning(warning)
            self._begin(facts, stack)
            return
        ours, theirs = (identify_precision(f["dtype"], f["device"]) for f in (self.facts, facts))
        if ours != theirs:
            raise OptionError(
                f"workers differ ({ours}, {theirs}); choose one --dtype, and --device cuda or cpu"
            )

    def _on_ended(self, ended: list[tuple[InputFile, Ended]]) -> None:
        settled = []
        for recording, one in ended:
            current = self.tally.current[recording.path]
            current.began = time.perf_counter() - one.elapsed
            current.seconds = one.seconds
            self.tally.loaded += one.seconds or 0.0
            written = one.written
            if self.sink.is_table and written.status == "done":  # its row is ours to write
                written = write_result(self.sink, recording, written.result)
            settled.append((current, written))
            if self.arguments.verbose and isinstance(written.result, Transcript):
                self.console.segments(recording.path, written.result.segments)
        self._settle(settled)
