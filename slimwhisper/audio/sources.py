"""Path, bytes or file object -> pieces of int16 samples, 16 kHz, mono, one after the other."""

import io
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.formats import BY_DEFAULT, ReadOptions
from slimwhisper.audio.headers import plain_samples, recordings
from slimwhisper.errors import AudioError
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

WAV_BLOCK = 1 << 19  # samples per read
SAMPLE_BYTES = 2  # of int16


class RemoteFile(ABC):
    """A recording that is not a file of this machine, or only a part of one. `str` is its name in
    messages. It is fetched in the thread that decodes it.
    """

    local: Path | None = None  # the file of this machine that holds it, if there is one
    excerpt: tuple[float, float | None] | None = None  # seconds, start and end; None: all

    @abstractmethod
    def fetch(self, target: IO[bytes]) -> None:
        """Write the file's bytes. Raises AudioError; StorageError if another try may succeed."""


Source = str | os.PathLike[str] | bytes | BinaryIO  # a file, or its bytes


def open_source(source: Source | RemoteFile) -> tuple[str, BinaryIO]:
    """A name for messages, and a seekable, non-empty file at its start; the caller closes it."""
    name = "audio data"
    file: BinaryIO
    data: bytes | bytearray | memoryview | str
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
            if isinstance(source, (bytes, bytearray, memoryview)):
                data = source
            elif hasattr(source, "read"):
                data = source.read()
            else:
                kind = f"is of type {type(source).__name__}"
                raise AudioError(f"{name}: {kind}; give a path, bytes, a file or an array")
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
    name: str, file: BinaryIO, how: ReadOptions = BY_DEFAULT
) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`: at least one sample, or an error. If channels are not mixed,
    those of more than one come as [n, channels].
    """
    channels: set[tuple[int, ...]] = set()
    for part in recordings(name, file):
        for piece in _pieces_of_one(name, part, how):
            channels.add(piece.shape[1:])
            if len(channels) > 1:
                raise AudioError(f"{name}: recordings with different channels follow each other")
            yield piece


def _pieces_of_one(name: str, file: BinaryIO, how: ReadOptions) -> Iterator[NDArray[np.int16]]:
    """Of one recording. A 16-bit 16 kHz mono WAV is read without PyAV, which takes longer."""
    plain = plain_samples(file)
    if plain is None or how.audio_track not in (None, 1, "1"):
        from slimwhisper.audio.ffmpeg import decode  # PyAV is slow to import

        yield from decode(name, file, how)
        return
    start, stop = plain
    file.seek(start)
    left = (stop - start) // SAMPLE_BYTES
    while left:
        data = file.read(SAMPLE_BYTES * min(WAV_BLOCK, left))
        if len(data) < SAMPLE_BYTES:
            seconds = left / SAMPLE_RATE
            raise AudioError(
                f"{name}: the last {seconds:.1f} s cannot be read; copy the file again"
            )
        piece = np.frombuffer(data, np.int16, len(data) // SAMPLE_BYTES)
        left -= piece.size
        yield piece
