"""Makes the plan of a job from its flags, before anything is written or loaded."""

import argparse
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.files import InputFile, Source, edge, open_sink
from slimwhisper.flags import load_chosen, model_arguments
from slimwhisper.jobs.console import Console, JSONConsole, TerminalConsole
from slimwhisper.jobs.decoding_flags import changed, options_of
from slimwhisper.jobs.flags import check_engine, dtype_of, layout_of
from slimwhisper.jobs.inputs import Inputs, are_stored, distinct
from slimwhisper.jobs.journal.identity import accepted_precisions, identify_job, may_have_settings
from slimwhisper.jobs.journal.journal import Journal
from slimwhisper.jobs.results.report import JobReport
from slimwhisper.jobs.results.writers import PARQUET, Files, Results
from slimwhisper.jobs.standard_input import StandardInput
from slimwhisper.outputs.formats import formats_of
from slimwhisper.outputs.layout import check_layout

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from slimwhisper.api import SlimWhisper


class JobPlan:
    """The parts of a job, as its flags define them."""

    def __init__(self, flags: argparse.Namespace) -> None:
        """Raises OptionError for flags that contradict each other, DependencyError for a missing
        package.
        """
        check_engine(flags)
        self.flags = flags
        self.options = options_of(flags)
        layout = layout_of(flags)
        with_words = flags.word_timestamps or flags.sentences or flags.diarize or flags.channels
        self.warnings = check_layout(layout, bool(with_words))
        if flags.skip_existing and flags.overwrite:
            raise OptionError("--skip_existing and --overwrite cannot be combined; choose one")
        self.report = None if flags.report is None else JobReport(flags.report)
        self.is_table = flags.output_format == PARQUET
        formats = (PARQUET,) if self.is_table else formats_of(flags.output_format, layout)
        self.files = Files(open_sink(flags.output_dir), formats, layout)
        self.inputs = self.read_inputs()

    def read_inputs(self) -> Source:
        """The recordings to read."""
        audio = self.flags.audio
        if are_stored(audio):
            stored: Source = edge("inputs")(audio, self.flags.audio_column)
            return stored
        return Inputs(audio, self.stdin)

    @cached_property
    def stdin(self) -> StandardInput | None:
        """Standard input, if it is read. Raises OptionError, AudioError."""
        if "-" not in self.flags.audio:
            return None
        if sys.stdin is None:
            raise OptionError("standard input is closed; pipe in a recording or a list of paths")
        return StandardInput(sys.stdin.buffer)

    def recordings(self, inputs: Source) -> Iterator[InputFile | SlimWhisperError]:
        """Every recording, once, and an error for each that cannot be found, listed or written."""
        entries = distinct(inputs.list())
        return entries if self.is_table else map(self.files.check_name, entries)

    def open_console(self) -> Console:
        """The console that the job prints on."""
        verbose = self.flags.verbose
        if self.flags.log_json:
            return JSONConsole(verbose=verbose)
        return TerminalConsole(verbose=verbose, live=verbose and self.inputs.is_one_file)

    def open_journal(self) -> Journal | None:
        """The journal; None: the job has none, which is the default for single files.

        Raises OutputError.
        """
        a = self.flags
        keeps_journal = self.inputs.is_job or self.is_table
        if not (keeps_journal if a.journal is None else a.journal):
            return None
        decoding = self.options if may_have_settings(a.model) else changed(self.options)
        return Journal(
            self.files.sink,
            identify_job(a, self.files.formats, decoding | dict(self.files.layout)),
            variants=accepted_precisions(dtype_of(a), a.device),
            ignore_earlier=a.overwrite,
        )

    def open_results(self, journal: Journal | None) -> Results:
        """Who writes the results. Raises OutputError; DependencyError for a table without
        pyarrow.
        """
        rules = {"skip_existing": self.flags.skip_existing, "retry_failed": self.flags.retry_failed}
        kind = edge(PARQUET) if self.is_table else Results
        results: Results = kind(self.files, journal, **rules)
        return results

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `load_model` after the name."""
        return model_arguments(self.flags) | {"dtype": dtype_of(self.flags)}

    def load_model(self) -> "SlimWhisper":
        """The model, in this process."""
        return load_chosen(self.flags, dtype=dtype_of(self.flags))

    def decoding(self) -> dict[str, Any]:
        """The arguments of `transcribe_many` that are the same in all processes."""
        loaders = self.flags.loaders
        if loaders is None and not self.inputs.is_job:
            loaders = 0  # processes take a moment to start
        reading = {"loaders": loaders, "allow_truncated": self.flags.allow_truncated}
        return self.options | reading

    def changed_options(self) -> dict[str, Any]:
        """The options for decoding and for subtitles that differ from their defaults."""
        return changed(self.options) | dict(self.files.layout)
