"""Makes a file with a header of samples that some clients send without one."""

import shutil
import struct
import tempfile
from typing import BinaryIO, cast

from slimwhisper.app.api.errors import APIError
from slimwhisper.types import SAMPLE_RATE

HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
MOST = 0xFFFFFFFF  # the largest size that a header can state; more is read up to the file's end


def wav_of(pcm: BinaryIO, rate: int = SAMPLE_RATE, channels: int = 1) -> BinaryIO:
    """A file with a header and the samples of another, 16 bits, little-endian; the other itself if
    it has a header. Blocks. Raises APIError, OSError.
    """
    size = pcm.seek(0, 2)
    pcm.seek(0)
    has_header = pcm.read(4) in (b"RIFF", b"RF64")
    pcm.seek(0)
    if has_header:
        return pcm
    frame = 2 * channels
    if not size or size % frame:
        message = f"{size} bytes are not PCM of 16 bits; send samples, or a file without encode"
        raise APIError(400, message, "invalid_audio")
    format = (b"WAVE", b"fmt ", 16, 1, channels, rate, rate * frame, frame, 16)
    whole, size = min(HEADER.size - 8 + size, MOST), min(size, MOST)
    made = cast(BinaryIO, tempfile.TemporaryFile())  # closed by the caller
    made.write(HEADER.pack(b"RIFF", whole, *format, b"data", size))
    shutil.copyfileobj(pcm, made)
    made.flush()  # a full disk is noticed here
    return made
