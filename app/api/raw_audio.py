"""Makes a file with a header of samples that some clients send without one."""

import tempfile
from typing import BinaryIO, cast

import soundfile

from slimwhisper.app.api.errors import APIError
from slimwhisper.types import SAMPLE_RATE

BLOCK = 1 << 20  # bytes at a time


def wav_of(pcm: BinaryIO, rate: int = SAMPLE_RATE, channels: int = 1) -> BinaryIO:
    """A file with a header (RF64, which has no limit of 4 GB) and the samples of another, 16 bits,
    little-endian; the other itself if it has a header. Blocks. Raises APIError.
    """
    size = pcm.seek(0, 2)
    pcm.seek(0)
    has_header = pcm.read(4) in (b"RIFF", b"RF64")
    pcm.seek(0)
    if has_header:
        return pcm
    if not size or size % (2 * channels):
        message = f"{size} bytes are not PCM of 16 bits; send samples, or a file without encode"
        raise APIError(400, message, "invalid_audio")
    made = tempfile.TemporaryFile()  # closed by the caller
    with soundfile.SoundFile(made, "w", rate, channels, "PCM_16", format="RF64") as wav:
        while block := pcm.read(BLOCK):
            wav.buffer_write(block, "int16")
    return cast(BinaryIO, made)
