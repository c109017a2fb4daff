"""Path, bytes or file object -> pieces of int16 samples, 16 kHz, mono, one after the other."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import soundfile
from numpy.typing import NDArray

from slimwhisper.audio.headers import is_plain_wav
from slimwhisper.audio.remote import RemoteFile
from slimwhisper.errors import AudioError
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

WAV_BLOCK = 1 << 19  # samples per read

Source = str | os.PathLike[str] | bytes | BinaryIO  # a file, or its bytes


def open_source(source: Source | RemoteFile) -> tuple[str, BinaryIO]:
    """A name for messages, and a seekable, non-empty file at its start; the caller closes it."""
    name = "audio data"
    file: BinaryIO
    try:
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            name = name_for_messages(path)
            if not path or "\0" in path:
                raise FileNotFoundError
            file = cast(BinaryIO, Path(path).open("rb"))
            if not file.seekable():  # a named pipe
                with file:
                    file = io.BytesIO(file.read())
        elif isinstance(source, RemoteFile):
            name = name_for_messages(str(source))
            file = _fetch(source)
        else:
            data = source if isinstance(source, (bytes, bytearray, memoryview)) else source.read()
            if isinstance(data, str):
                raise AudioError(f"{name}: is text; open the file in binary mode ('rb')")
            file = io.BytesIO(data)
    except (OSError, ValueError) as error:  # ValueError: a closed file, undecodable text
        reasons: dict[type[Exception], str] = {
            FileNotFoundError: "no such file; check the path",
            NotADirectoryError: "no such file; check the path",
            IsADirectoryError: "is a folder; give a file in it",
            PermissionError: "permission denied; make it readable for this user",
        }
        reason = reasons.get(type(error), f"cannot be opened ({error_line(error)}); check the file")
        raise AudioError(f"{name}: {reason}") from error
    if not file.read(1):
        file.close()
        raise AudioError(f"{name}: is empty (0 bytes); copy or record it again")
    file.seek(0)
    return name, file


def _fetch(source: RemoteFile) -> BinaryIO:
    """A remote file's bytes, at their start, in a file that has a name while it is open."""
    if source.local is not None:
        return cast(BinaryIO, source.local.open("rb"))
    file = cast(BinaryIO, tempfile.NamedTemporaryFile())
    try:
        source.fetch(file)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def name_for_messages(path: str) -> str:
    """A path for messages, on one line."""
    return path if path.isprintable() and path else repr(path)


def pieces_of(
    name: str,
    file: BinaryIO,
    allow_truncated: bool,
    max_samples: float = inf,
    split: bool = False,
) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`, which is at its start: at least one sample, or an error.

    max_samples: at the file's own rate, of all channels together. split: do not mix the channels;
    those of more than one come as int16 [n, channels].
    """
    wav = _open_plain_wav(file)
    if wav is None:
        from slimwhisper.audio.ffmpeg import decode  # PyAV is slow to import

        yield from decode(name, file, allow_truncated, max_samples, split)
        return
    with wav:
        remaining = wav.frames
        while remaining:
            piece = cast(NDArray[np.int16], wav.read(WAV_BLOCK, dtype="int16"))
            if not piece.size:
                seconds = remaining / SAMPLE_RATE
                raise AudioError(
                    f"{name}: the last {seconds:.1f} s cannot be read; copy the file again"
                )
            remaining -= piece.size
            yield piece


def _open_plain_wav(file: BinaryIO) -> soundfile.SoundFile | None:
    """An intact 16-bit 16 kHz mono WAV, which libsndfile reads many times faster than PyAV.

    None for anything else, with `file` at its start: libsndfile never reads other formats, one of
    which has CVE-2026-37555. A file with warnings in its log ("should be") is left to FFmpeg.
    """
    if not is_plain_wav(file):
        return None
    with suppress(soundfile.SoundFileError, OSError):
        wav = soundfile.SoundFile(file)
        if "should be" not in wav.extra_info and wav.frames:
            return wav
        wav.close()
    file.seek(0)
    return None
