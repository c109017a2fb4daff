"""Runs `transcribe --engine ray`: a job whose recordings are decoded by workers of Ray."""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from slimwhisper.audio.read_ahead import Loader
from slimwhisper.files import InputFile, sweep
from slimwhisper.jobs.inputs import Inputs, longest_first
from slimwhisper.jobs.job import Outcomes, run_job
from slimwhisper.jobs.ledger import Ledger
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.ray.cluster import Workers, started
from slimwhisper.ray.transcriber import Transcriber
from slimwhisper.types import Transcript

LOOKAHEAD = 256  # recordings that are listed ahead of the workers


def run_transcribe_on_ray(flags: argparse.Namespace) -> int:
    """Transcribe all recordings; returns the exit status, see `cli.main`."""
    return run_job(JobPlan.of(flags), transcribe_on_ray)


def transcribe_on_ray(plan: JobPlan, recordings: Iterator[InputFile], ledger: Ledger) -> Outcomes:
    """The engine of a job with workers, which decode and write; the driver records the results
    (`slimwhisper.jobs.results.writers`).
    """
    # larger files first; containers already yield longer ones first, and lists may arrive slowly
    ahead = LOOKAHEAD if isinstance(plan.inputs, Inputs) and not plan.inputs.is_list else 0
    ordered = longest_first(((one.fingerprint.size, one) for one in recordings), ahead)
    make_transcriber = partial(
        Transcriber,
        plan.model,
        load=plan.load,
        slots=plan.batch_size,
        **plan.decoding(),
    )

    def ready(facts: dict[str, Any], warnings: list[str]) -> None:
        for warning in warnings if ledger.facts is None else ():
            ledger.console.warning(warning)
        ledger.loaded(facts)

    with started(plan) as cluster:
        source = Loader(ordered, lambda _: None, LOOKAHEAD, 1)
        workers = Workers(cluster, ready, str(Path.cwd()), make_transcriber, ledger.results.write)
        ledger.totals.fill = workers.fill
        ledger.in_progress = lambda: workers.scheduler.running
        try:
            with closing(workers):
                for recording, ended in workers.run(source, ledger.stopping):
                    path = recording.path
                    if ended.seconds is not None:
                        ledger.duration(path, ended.seconds)
                    if isinstance(ended.result, Transcript):
                        ledger.segments(path, ended.result.segments, ended.seconds or 0.0)
                    yield recording, ended
        finally:
            source.close(lambda _: None)
        folder = plan.files.sink.local
        if folder is not None and plan.shard is None:  # else others may be writing there
            for output in workers.unclean:
                sweep((folder / output).parent, time.time())
