"""Recordings that need work before they are read: samples without a header, which get one, and the
voices of known speakers, which a request has as data URLs.

A voice is decoded like any other upload, by a reader process, and passed on as plain samples in an
unnamed file, which disappears when it is closed.
"""

import base64
import io
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import refused
from slimwhisper.audio.samples import Samples
from slimwhisper.types import SAMPLE_RATE

# -- samples without a header --------------------------------------------------------------------

HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
ENCODINGS = {  # of samples, by Deepgram's names: soundfile's name, a header's number, and bits
    "linear16": ("PCM_16", 1, 16),
    "linear32": ("FLOAT", 3, 32),
    "mulaw": ("ULAW", 7, 8),
    "alaw": ("ALAW", 6, 8),
}
MOST = 0xFFFFFFFF  # the largest size that a header can state; more is read up to the file's end


def wav_of(
    pcm: BinaryIO, rate: int = SAMPLE_RATE, channels: int = 1, encoding: str = "linear16"
) -> BinaryIO:
    """A file with a header and the samples of another, little-endian; the other itself if it has a
    header. encoding: one of `ENCODINGS`. Blocks. Raises APIError, OSError.
    """
    size = pcm.seek(0, 2)
    pcm.seek(0)
    has_header = pcm.read(4) in (b"RIFF", b"RF64")
    pcm.seek(0)
    if has_header:
        return pcm
    _, kind, bits = ENCODINGS[encoding]
    frame = bits // 8 * channels
    if not size or size % frame:
        message = f"{size} bytes are not {encoding} samples; send those, or a file with a header"
        raise APIError(400, message, "invalid_audio")
    format = (b"WAVE", b"fmt ", 16, kind, channels, rate, rate * frame, frame, bits)
    whole, size = min(HEADER.size - 8 + size, MOST), min(size, MOST)
    made = cast(BinaryIO, tempfile.TemporaryFile())  # closed by the caller
    made.write(HEADER.pack(b"RIFF", whole, *format, b"data", size))
    shutil.copyfileobj(pcm, made)
    made.flush()  # a full disk is noticed here
    return made


# -- known speakers ------------------------------------------------------------------------------

NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
MAX_SPEAKERS = 4  # speakers, as at OpenAI
SECONDS = (2.0, 10.0)  # of a recording, as at OpenAI
SLACK = 0.1  # seconds of padding that an encoder may have added
MAX_NAME = 64  # characters
MAX_BYTES = 3 << 20  # of a recording: 10 s of stereo WAV at 48 kHz take 2 MB
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(;[\w.+-]+=[\w.+\"-]*)*;base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class SpeakerReference:
    """A known speaker: a name, and a recording of the voice."""

    name: str
    data: bytes  # an audio file


def read_references(names: Sequence[str], urls: Sequence[str]) -> tuple[SpeakerReference, ...]:
    """The known speakers of a form. Raises APIError."""
    if len(names) != len(urls):
        message = f"{len(names)} {NAMES}[] and {len(urls)} {REFERENCES}[]: send one of each"
        raise refused(f"{REFERENCES}[]", message)
    if len(names) > MAX_SPEAKERS:
        raise refused(f"{NAMES}[]", f"{len(names)} {NAMES}[]: send at most {MAX_SPEAKERS}")
    for name in names:
        if not name.isprintable() or len(name) > MAX_NAME or names.count(name) > 1:
            rule = f"send different names, of up to {MAX_NAME} printable characters"
            raise refused(f"{NAMES}[]", f"{NAMES}[] {name[:MAX_NAME]!r}: {rule}")
    return tuple(SpeakerReference(n, _decode(n, u)) for n, u in zip(names, urls, strict=True))


def _decode(name: str, url: str) -> bytes:
    """A data URL's bytes."""
    field = f"{REFERENCES}[]"
    head = _DATA_URL.match(url)
    try:
        if head is None:
            raise ValueError
        data = base64.b64decode(url[head.end() :], validate=True)
    except ValueError:
        message = f"{reference_label(name)}: send a data URL, data:audio/wav;base64,..."
        raise refused(field, message) from None
    if len(data) > MAX_BYTES:
        raise refused(field, f"{reference_label(name)}: send at most {MAX_BYTES >> 20} MB")
    return data


def store_references(
    references: Sequence[SpeakerReference], read: Callable[[Path, str], Samples], files: ExitStack
) -> tuple[tuple[str, str], ...]:
    """(name, path) of each known speaker; blocks. The paths are valid until `files` is closed.

    read: returns the samples of a file, from its path and a name for messages. Raises APIError,
    AudioError.
    """
    stored = []
    for reference in references:
        label = reference_label(reference.name)
        with tempfile.TemporaryFile() as upload:
            upload.write(reference.data)
            upload.flush()
            samples = read(open_path(upload), label)
        with closing(samples):
            seconds, (shortest, longest) = len(samples) / SAMPLE_RATE, SECONDS
            if not shortest <= seconds <= longest + SLACK:
                message = f"{label}: {seconds:.1f} s long; send {shortest:g} to {longest:g} s"
                raise refused(f"{REFERENCES}[]", message)
            pcm = np.round(samples.read(0, len(samples)) * 2**15).astype("<i2").tobytes()
            file = files.enter_context(wav_of(io.BytesIO(pcm)))
        stored.append((reference.name, str(open_path(file))))
    return tuple(stored)


def reference_label(name: str) -> str:
    """The name of a known speaker's recording in messages."""
    return f"{REFERENCES}[] of {name!r}"


def open_path(file: IO[bytes]) -> Path:
    """A path to an unnamed file, for another process of the same user."""
    return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
