"""What a job is to do, from its flags: nothing has been written or loaded."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.flags import load_chosen, model_arguments
from slimwhisper.jobs.console import Console, JSONConsole, TerminalConsole
from slimwhisper.jobs.decoding_flags import changed, options_of
from slimwhisper.jobs.flags import check_engine, dtype_of, layout_of
from slimwhisper.jobs.inputs import Inputs, distinct
from slimwhisper.jobs.journal.identity import accepted_precisions, identify_job, may_have_settings
from slimwhisper.jobs.journal.journal import Journal
from slimwhisper.jobs.results.report import Report
from slimwhisper.jobs.results.sinks import PARQUET, Files, Sink, TableSink
from slimwhisper.outputs.formats import formats_of
from slimwhisper.outputs.layout import check_layout
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.inputs import StoredInputs, are_stored
from slimwhisper.storage.outputs import OutputFolder

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from slimwhisper.api import SlimWhisper


class JobPlan:
    """The parts of a job, as its flags ask for them."""

    def __init__(self, flags: argparse.Namespace) -> None:
        """Raises OptionError for flags that do not agree, DependencyError for what they need."""
        check_engine(flags)
        self.flags = flags
        self.options = options_of(flags)
        layout = layout_of(flags)
        with_words = flags.word_timestamps or flags.sentences or bool(flags.diarize)
        self.warnings = check_layout(layout, with_words)
        if flags.skip_existing and flags.overwrite:
            raise OptionError("--skip_existing and --overwrite exclude each other; choose one")
        self.report = None if flags.report is None else Report(flags.report)
        self.is_table = flags.output_format == PARQUET
        formats = (PARQUET,) if self.is_table else formats_of(flags.output_format, layout)
        self.files = Files(OutputFolder(flags.output_dir), formats, layout)
        self.inputs = self.read_inputs()

    def read_inputs(self) -> Inputs | StoredInputs:
        """The recordings to read."""
        audio = self.flags.audio
        if are_stored(audio):
            return StoredInputs(audio, self.flags.audio_column)
        return Inputs(audio, sys.stdin.buffer if "-" in audio else None)

    def recordings(self) -> Iterator[InputFile | SlimWhisperError]:
        """Every recording, once, and an error for what cannot be found, listed or written."""
        found = distinct(self.read_inputs().files())
        return found if self.is_table else map(self.files.checked, found)

    def open_console(self) -> Console:
        """Where the job prints."""
        verbose = self.flags.verbose
        if self.flags.log_json:
            return JSONConsole(verbose=verbose)
        return TerminalConsole(verbose=verbose, live=verbose and self.inputs.is_one_file)

    def open_journal(self) -> Journal | None:
        """The journal, if the job keeps one; by default, one of plain files does not.

        Raises OutputError.
        """
        a = self.flags
        wanted = self.inputs.is_job or self.is_table  # a table has its own marks
        if not (wanted if a.journal is None else a.journal):
            return None
        decoding = self.options if may_have_settings(a.model) else changed(self.options)
        return Journal(
            self.files.folder,
            identify_job(a, self.files.formats, decoding | dict(self.files.layout)),
            variants=accepted_precisions(dtype_of(a), a.device),
            forget=a.overwrite,
        )

    def open_sink(self, journal: Journal | None) -> Sink:
        """Where results go. Raises OutputError; DependencyError without what a table needs."""
        rules = {"skip_existing": self.flags.skip_existing, "retry_failed": self.flags.retry_failed}
        return (TableSink if self.is_table else Sink)(self.files, journal, **rules)

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `load_model` after the name."""
        return model_arguments(self.flags) | {"dtype": dtype_of(self.flags)}

    def load_model(self) -> "SlimWhisper":
        """The model, in this process."""
        if self.flags.threads:
            import torch

            torch.set_num_threads(self.flags.threads)
        return load_chosen(self.flags, dtype=dtype_of(self.flags))

    def decoding(self) -> dict[str, Any]:
        """The arguments of `transcribe_many` that are the same in all processes."""
        loaders = self.flags.loaders
        if loaders is None and not self.inputs.is_job:
            loaders = 0  # they take a moment to start
        return self.options | {"loaders": loaders, "allow_truncated": self.flags.allow_truncated}

    def options_shown(self) -> dict[str, Any]:
        """The options of decoding and of subtitles that differ from their defaults."""
        return changed(self.options) | dict(self.files.layout)
