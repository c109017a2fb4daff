"""Transcripts -> output files, each written completely or not at all."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slimwhisper.atomic import PART, atomic_write
from slimwhisper.errors import AudioError, OutputError
from slimwhisper.jobs.inputs.inputs import InputFile
from slimwhisper.outputs.formats import write_transcript
from slimwhisper.types import Transcript

MAX_SWEPT = 4096  # folders remembered as swept; sweeping one again only costs time


def prepare_output_dir(output_dir: Path) -> None:
    """Create the folder and check that it is writable. Raises OutputError."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir):
            pass
    except OSError as error:
        raise OutputError(
            f"{output_dir}: cannot write there ({error.strerror}); choose another --output_dir"
        ) from error


def output_paths(recording: InputFile, formats: Sequence[str]) -> list[Path]:
    """The files that a recording's transcript is written to."""
    return [recording.output.with_name(f"{recording.output.name}.{name}") for name in formats]


def check_names(recording: InputFile, formats: Sequence[str], longest: float) -> None:
    """Raise AudioError if the name of an output would have more than `longest` bytes."""
    most = max(len(os.fsencode(path.name)) for path in output_paths(recording, formats))
    if most > longest:
        raise AudioError(
            f"{recording.path}: its outputs would have names of {most} bytes, and {longest:g} are "
            "possible; give it a shorter name"
        )


def outputs_exist(recording: InputFile, formats: Sequence[str]) -> bool:
    """Whether all outputs of a recording exist."""
    try:
        return all(path.exists() for path in output_paths(recording, formats))
    except OSError:  # no permission; writing will report it
        return False


def write_outputs(
    transcript: Transcript,
    recording: InputFile,
    formats: Sequence[str],
    layout: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write every format atomically: to a temporary file in the same folder, then rename it.

    `layout`: see `write_transcript`. Raises OutputError.
    """
    targets = output_paths(recording, formats)
    for name, target in zip(formats, targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            source = recording.path if isinstance(recording.path, Path) else recording.path.local
            if source is not None and os.path.realpath(target) == os.path.realpath(source):
                raise OutputError(f"{target}: is the input itself; choose another --output_dir")
            with atomic_write(target, text=True) as file:
                write_transcript(transcript, name, file, layout)
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written ({error.strerror}); free some space, "
                "or choose another --output_dir"
            ) from error
    return targets


class Sweeper:
    """Removes unfinished outputs that a killed run left behind.

    Their recordings are transcribed again, so it is enough to sweep the folders that this run
    writes to. It removes only files older than this run. Only one job with a journal can write to
    a folder at a time.
    """

    def __init__(self) -> None:
        self._start_time = time.time()
        self._swept: dict[Path, None] = {}

    def sweep(self, folder: Path) -> None:
        """Remove unfinished outputs from a folder, unless it was swept recently."""
        if folder in self._swept:
            return
        if len(self._swept) >= MAX_SWEPT:
            del self._swept[next(iter(self._swept))]
        self._swept[folder] = None
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    is_part = entry.name.startswith(PART[0]) and entry.name.endswith(PART[1])
                    if is_part and entry.stat().st_mtime < self._start_time:
                        Path(entry.path).unlink(missing_ok=True)
        except OSError:
            pass  # the folder does not exist yet, or we lack permission
