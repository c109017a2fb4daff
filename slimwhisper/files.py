"""Arguments -> recordings -> output files, each written whole or not at all."""

import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slimwhisper.audio import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, OutputError
from slimwhisper.types import Transcript
from slimwhisper.writers import write_transcript


@dataclass(frozen=True, slots=True)
class Recording:
    """An input file, and where its outputs go: `output` lacks the format's suffix."""

    path: Path
    output: Path


def find_recordings(
    arguments: Iterable[str], output_dir: Path
) -> tuple[list[Recording], list[AudioError]]:
    """Files as they are, folders with all the audio below them; missing ones become errors.

    Outputs mirror a folder's tree below `output_dir`. Recordings of one folder that differ in their
    suffix alone keep it (`a.mp3.txt`, `a.wav.txt`); files of one name from several folders keep
    the folders in which they differ.
    """
    found: list[tuple[Path, Path]] = []  # (path, relative output with suffix)
    errors: list[AudioError] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES)
            below = [p for p in below if p.is_file()]
            if not below:
                errors.append(
                    AudioError(
                        f"{argument}: no audio or video files in this folder; check the path"
                    )
                )
            found += [(p, p.relative_to(path)) for p in below]
        elif path.exists():
            found.append((path, Path(path.name)))
        else:
            errors.append(AudioError(f"{argument}: no such file; check the path"))
    unique = dict(found)  # a file given twice is transcribed once
    return _plan_outputs(list(unique.items()), output_dir), errors


def _plan_outputs(found: Sequence[tuple[Path, Path]], output_dir: Path) -> list[Recording]:
    """No two recordings share an output."""
    outputs = {path: relative.with_name(relative.stem) for path, relative in found}
    for rename in ("suffix", "folders"):
        taken = Counter(outputs.values())
        clashing = [(path, relative) for path, relative in found if taken[outputs[path]] > 1]
        if not clashing:
            break
        if rename == "suffix":
            outputs.update({path: relative for path, relative in clashing})
        else:
            absolute = {path: path.resolve() for path, _ in clashing}
            root = os.path.commonpath([p.parent for p in absolute.values()])
            outputs.update({path: p.relative_to(root) for path, p in absolute.items()})
    return [Recording(path, output_dir / output) for path, output in outputs.items()]


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


def write_outputs(transcript: Transcript, recording: Recording, formats: Sequence[str]) -> None:
    """Write every format atomically: a temporary file beside it, then a rename.

    Raises OutputError.
    """
    for form in formats:
        target = recording.output.with_name(f"{recording.output.name}.{form}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.resolve() == recording.path.resolve():
                raise OutputError(f"{target}: is the input itself; choose another --output_dir")
            temporary = target.with_name(f".slimwhisper-{secrets.token_hex(6)}.part")
            try:
                with temporary.open("x", encoding="utf-8") as file:
                    write_transcript(transcript, form, file)
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
