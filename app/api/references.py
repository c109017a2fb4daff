"""Known speakers: names and recordings of their voices, sent as data URLs.

A recording is decoded like any other upload, by a reader process, and handed on as plain samples
in an unnamed file, which is gone when it is closed.
"""

import base64
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from slimwhisper.app.api.fields import refused
from slimwhisper.audio.samples import Samples
from slimwhisper.types import SAMPLE_RATE

NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
MOST = 4  # speakers, as at OpenAI
SECONDS = (2.0, 10.0)  # of a recording, as at OpenAI
SLACK = 0.1  # seconds that an encoder may have added
MAX_NAME = 64  # characters
MAX_BYTES = 3 << 20  # of a recording: 10 s of stereo WAV at 48 kHz take 2 MB
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(;[\w.+-]+=[\w.+\"-]*)*;base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """A known speaker: a name, and a recording of the voice."""

    name: str
    data: bytes  # an audio file


def read_references(names: Sequence[str], urls: Sequence[str]) -> tuple[Reference, ...]:
    """The known speakers of a form. Raises APIError."""
    if len(names) != len(urls):
        message = f"{len(names)} {NAMES}[] and {len(urls)} {REFERENCES}[]: send one for each"
        raise refused(f"{REFERENCES}[]", message)
    if len(names) > MOST:
        raise refused(f"{NAMES}[]", f"{len(names)} {NAMES}[]: up to {MOST} can be known")
    for name in names:
        if not name.isprintable() or len(name) > MAX_NAME or names.count(name) > 1:
            rule = f"give each a name of its own, of up to {MAX_NAME} printable characters"
            raise refused(f"{NAMES}[]", f"{NAMES}[] {name[:MAX_NAME]!r}: {rule}")
    return tuple(Reference(n, _decode(n, u)) for n, u in zip(names, urls, strict=True))


def _decode(name: str, url: str) -> bytes:
    """A data URL's bytes."""
    field = f"{REFERENCES}[]"
    head = _DATA_URL.match(url)
    try:
        if head is None:
            raise ValueError
        data = base64.b64decode(url[head.end() :], validate=True)
    except ValueError:
        message = f"{shown(name)}: give a data URL, data:audio/wav;base64,..."
        raise refused(field, message) from None
    if len(data) > MAX_BYTES:
        raise refused(field, f"{shown(name)}: larger than {MAX_BYTES >> 20} MB")
    return data


def store_references(
    references: Sequence[Reference], read: Callable[[Path, str], Samples], files: AsyncExitStack
) -> tuple[tuple[str, str], ...]:
    """(name, path) of each known speaker; blocks. The paths are good until `files` is closed.

    read: a file's samples, from its path and a name for messages. Raises APIError, AudioError.
    """
    import soundfile

    found = []
    for reference in references:
        named = shown(reference.name)
        with tempfile.TemporaryFile() as sent:
            sent.write(reference.data)
            sent.flush()
            samples = read(open_path(sent), named)
        with closing(samples):
            seconds, (least, most) = len(samples) / SAMPLE_RATE, SECONDS
            if not least <= seconds <= most + SLACK:
                message = f"{named}: {seconds:.1f} s long; give {least:g} to {most:g} s"
                raise refused(f"{REFERENCES}[]", message)
            file = files.enter_context(tempfile.TemporaryFile())
            heard = samples.read(0, len(samples))
            soundfile.write(file, heard, SAMPLE_RATE, format="WAV", subtype="FLOAT")
            file.flush()
        found.append((reference.name, str(open_path(file))))
    return tuple(found)


def shown(name: str) -> str:
    """What messages call a known speaker's recording."""
    return f"{REFERENCES}[] of {name!r}"


def open_path(file: IO[bytes]) -> Path:
    """A path to an unnamed file, for another process of the same user."""
    return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
