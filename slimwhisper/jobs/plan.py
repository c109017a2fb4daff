"""Makes the plan of a job from its flags, before anything is written or loaded."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.files import InputFile, JobSource, edge, open_sink
from slimwhisper.flags import load_with_threads, model_arguments
from slimwhisper.jobs.flags import changed, check_engine, checked, dtype_of, layout_of, options_of
from slimwhisper.jobs.inputs import Inputs, StandardInput, are_stored, distinct, in_shard
from slimwhisper.jobs.journal import Journal, accepted_precisions, identify_job, may_have_settings
from slimwhisper.jobs.progress import Console, JSONConsole, TerminalConsole
from slimwhisper.jobs.writers import PARQUET, Files, JobResults
from slimwhisper.outputs import HIGHLIGHT, check_layout, formats_of

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from slimwhisper.api import SlimWhisper
    from slimwhisper.jobs.report import JobReport


@dataclass(kw_only=True)
class JobPlan:
    """A job, as its flags define it. Fields without a comment are the flags of their names."""

    audio: Sequence[str]
    audio_column: str | None
    model: str
    threads: int
    load: dict[str, Any]  # the arguments of `load_model` after the name
    chose_cache: bool  # the user gave --cache
    options: dict[str, Any]  # for decoding, those that were given
    batch_size: int | None
    loaders: int | None
    allow_truncated: bool
    files: Files  # the outputs
    journal: bool | None
    overwrite: bool
    skip_existing: bool
    retry_failed: bool
    fail_fast: bool
    shard: tuple[int, int] | None
    report: "JobReport | None"
    verbose: bool
    log_json: bool
    warnings: Sequence[str]  # for the user
    engine: str
    ray_address: str | None
    workers: int | None
    devices: str | None

    @staticmethod
    def of(flags: argparse.Namespace) -> "JobPlan":
        """Raises OptionError for flags that contradict each other, DependencyError for a missing
        package.
        """
        check_engine(flags)
        options = checked(options_of(flags))
        layout = layout_of(flags)
        with_words = flags.word_timestamps or flags.sentences or flags.diarize or flags.channels
        warnings = check_layout(layout, bool(with_words), sign="--")
        if flags.skip_existing and flags.overwrite:
            raise OptionError("--skip_existing and --overwrite cannot be combined; choose one")
        report = None
        if flags.report is not None:
            from slimwhisper.jobs.report import JobReport

            report = JobReport(flags.report)
        is_table = flags.output_format == PARQUET
        formats = (PARQUET,) if is_table else formats_of(flags.output_format, layout)
        for name, useful in {HIGHLIGHT: ("srt", "vtt", "ass"), "token_logprobs": ("json",)}.items():
            if getattr(flags, name) and not set(useful) & set(formats):
                warnings.append(f"--{name} has no effect without -f {' or '.join(useful)}")
        if flags.hotwords and os.path.isfile(flags.hotwords):  # noqa: PTH113  (never raises)
            warnings.append(f"--hotwords {flags.hotwords} is a file; did you mean --hot_words?")
        made: dict[str, Any] = {
            "load": model_arguments(flags) | {"dtype": dtype_of(flags)},
            "chose_cache": "cache" in getattr(flags, "explicit", ()),
            "options": options,
            "files": Files(open_sink(flags.output_dir), formats, layout),
            "report": report,
            "warnings": warnings,
        }
        same = {field.name for field in fields(JobPlan)} - made.keys()
        plan = JobPlan(**made, **{name: getattr(flags, name) for name in same})
        _ = plan.inputs  # tells of mistakes in them
        if flags.multilingual and flags.language:
            warnings.append("--language has no effect on the text with --multilingual True")
        if flags.retry_failed and not plan.keeps_journal:
            warnings.append("--retry_failed has no effect without a journal; add --journal True")
        return plan

    @property
    def is_table(self) -> bool:
        """Whether the outputs are one table of all recordings."""
        return self.files.formats == (PARQUET,)

    @cached_property
    def inputs(self) -> JobSource:
        """The recordings to read. Raises OptionError, DependencyError, AudioError."""
        return self.read_inputs()

    def read_inputs(self) -> JobSource:
        """The recordings to read, from their beginning."""
        if are_stored(self.audio):
            return edge("inputs")(self.audio, self.audio_column)
        return Inputs(self.audio, self.stdin)

    @cached_property
    def stdin(self) -> StandardInput | None:
        """Standard input, if it is read. Raises OptionError, AudioError."""
        if "-" not in self.audio:
            return None
        if sys.stdin is None:
            raise OptionError("standard input is closed; pipe in a recording or a list of paths")
        return StandardInput(sys.stdin.buffer)

    def recordings(self, inputs: JobSource) -> Iterator[InputFile | SlimWhisperError]:
        """Every recording, once, and an error for each that cannot be found, listed or written."""
        entries = in_shard(distinct(inputs.list(), self.is_table), *(self.shard or (1, 1)))
        return entries if self.is_table else map(self.files.check_name, entries)

    def open_console(self) -> Console:
        """The console that the job prints on."""
        if self.log_json:
            return JSONConsole(verbose=self.verbose)
        live = self.verbose and self.inputs.is_one_file
        return TerminalConsole(verbose=self.verbose, live=live)

    @property
    def keeps_journal(self) -> bool:
        """Whether there is a journal; of single files, there is none unless requested."""
        return self.inputs.is_job or self.is_table if self.journal is None else self.journal

    def open_journal(self) -> Journal | None:
        """The journal, if there is one. Raises OutputError."""
        if not self.keeps_journal:
            return None
        decoding = self.options if may_have_settings(self.model) else changed(self.options)
        options = decoding | dict(self.files.layout)
        if self.allow_truncated:
            options["allow_truncated"] = True
        return Journal(
            self.files.sink,
            identify_job(self.model, self.load, self.files.formats, options),
            variants=accepted_precisions(self.load["dtype"], self.load["device"]),
            ignore_earlier=self.overwrite,
            shard=self.shard,
        )

    def open_results(self, journal: Journal | None) -> JobResults:
        """Who writes the results. Raises OutputError; DependencyError for a table without
        pyarrow.
        """
        kind: type[JobResults] = edge(PARQUET) if self.is_table else JobResults
        rules = {"skip_existing": self.skip_existing, "retry_failed": self.retry_failed}
        return kind(self.files, journal, alone=self.shard is None, **rules)

    def load_model(self, windows: int | None) -> "SlimWhisper":
        """The model, in this process. windows: decoded together, if that is known."""
        windows = None if self.chose_cache else windows
        return load_with_threads(self.threads, name=self.model, windows=windows, **self.load)

    def decoding(self) -> dict[str, Any]:
        """The arguments of `transcribe_many` that are the same in all processes."""
        quick = self.loaders is None and not self.inputs.is_job  # processes take a moment to start
        loaders = 0 if quick else self.loaders
        return self.options | {"loaders": loaders, "allow_truncated": self.allow_truncated}
