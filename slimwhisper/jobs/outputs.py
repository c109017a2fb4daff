"""Transcripts -> output files, each written whole or not at all."""

import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slimwhisper.errors import OutputError
from slimwhisper.jobs.inputs import InputFile
from slimwhisper.types import Transcript
from slimwhisper.writers import write_transcript

PART = (".slimwhisper-", ".part")  # how the name of an output begins and ends until it is whole
REMEMBERED = 4096  # folders seen to hold no parts; another look at one only costs time


def prepare_output_dir(output_dir: Path) -> None:
    """Create the folder and see that it can be written to, before any work. Raises OutputError."""
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


def outputs_exist(recording: InputFile, formats: Sequence[str]) -> bool:
    """Whether every one of them is there."""
    try:
        return all(path.exists() for path in output_paths(recording, formats))
    except OSError:  # where we may not look, writing will say what is wrong
        return False


def write_outputs(
    transcript: Transcript,
    recording: InputFile,
    formats: Sequence[str],
    layout: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write every format atomically: a temporary file beside it, then a rename.

    `layout`: see `write_transcript`. Raises OutputError.
    """
    targets = output_paths(recording, formats)
    for name, target in zip(formats, targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.realpath(target) == os.path.realpath(recording.path):
                raise OutputError(f"{target}: is the input itself; choose another --output_dir")
            temporary = target.with_name(secrets.token_hex(6).join(PART))
            try:
                with temporary.open("x", encoding="utf-8") as file:
                    write_transcript(transcript, name, file, layout)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written ({error.strerror}); free some space, "
                "or choose another --output_dir"
            ) from error
    return targets


class Sweeper:
    """Removes what a killed run left half-written.

    A recording whose writing was cut short is transcribed again, so only folders that are written
    to are looked at, and there only files older than this run. Of the jobs that keep a journal one
    at a time writes to a folder.
    """

    def __init__(self) -> None:
        self._began = time.time()
        self._clean: dict[Path, None] = {}

    def sweep(self, folder: Path) -> None:
        """Remove the parts in a folder, if it was not looked at lately."""
        if folder in self._clean:
            return
        if len(self._clean) >= REMEMBERED:
            del self._clean[next(iter(self._clean))]
        self._clean[folder] = None
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    is_part = entry.name.startswith(PART[0]) and entry.name.endswith(PART[1])
                    if is_part and entry.stat().st_mtime < self._began:
                        Path(entry.path).unlink(missing_ok=True)
        except OSError:
            pass  # no such folder yet, or not ours to clean
