"""The functions of faster-whisper for audio, with our readers."""

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio import mel
from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import open_source
from slimwhisper.types import SAMPLE_RATE


def decode_audio(
    input_file: str | BinaryIO, sampling_rate: int = SAMPLE_RATE, split_stereo: bool = False
) -> Any:
    """Decode the audio of a file. A file that ends early is read as far as it goes.

    Args:
        input_file: A path or a binary file object.
        sampling_rate: The rate of the result in Hz.
        split_stereo: Whether to return the left and the right channel. Otherwise channels are mixed
            to mono.

    Returns:
        The samples, float32 [n] in [-1, 1), or two such arrays.

    Raises:
        AudioError: When the file cannot be read.
    """
    if sampling_rate == SAMPLE_RATE and not split_stereo:
        return load_audio(input_file, allow_truncated=True)
    from slimwhisper.audio_formats.ffmpeg import decode_as  # PyAV is slow to import

    name, file = open_source(input_file)
    with file:
        layout = "stereo" if split_stereo else "mono"
        samples = decode_as(name, file, layout, sampling_rate).astype(np.float32) / 32768
    return (samples[0::2], samples[1::2]) if split_stereo else samples


def pad_or_trim(array: NDArray[np.float32], length: int = 3000, *, axis: int = -1) -> Any:
    """Cut an array to a length along an axis, or extend it with zeros.

    Args:
        array: The array.
        length: The length of the result along the axis, 3000 frames by default.
        axis: The axis.

    Returns:
        The new array.
    """
    return mel.pad_or_trim(array, length, axis=axis)
