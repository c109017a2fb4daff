"""faster-whisper's functions for audio, with our readers."""

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio import whisper_calls
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import open_source
from slimwhisper.types import SAMPLE_RATE


def decode_audio(
    input_file: str | BinaryIO, sampling_rate: int = SAMPLE_RATE, split_stereo: bool = False
) -> Any:
    """A file's samples, float32 [n] in [-1, 1) at `sampling_rate` Hz, mixed to mono; with
    `split_stereo`, those of the left and of the right channel. Files that end early are read as
    far as they go. Raises AudioError.
    """
    if sampling_rate == SAMPLE_RATE and not split_stereo:
        return load_audio(input_file, allow_truncated=True)
    from slimwhisper.audio.ffmpeg import decode_as  # PyAV is slow to import

    name, file = open_source(input_file)
    with file:
        layout = "stereo" if split_stereo else "mono"
        samples = decode_as(name, file, layout, sampling_rate).astype(np.float32) / 32768
    return (samples[0::2], samples[1::2]) if split_stereo else samples


def pad_or_trim(array: NDArray[np.float32], length: int = 3000, *, axis: int = -1) -> Any:
    """`array` with zeros added, or what is too much cut off, along an axis."""
    return whisper_calls.pad_or_trim(array, length, axis=axis)
