"""The functions of `whisper.audio`, for scripts that were written for it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.mel import FFT_SAMPLES
from slimwhisper.mel_filters import mel_filters
from slimwhisper.types import CHUNK_SECONDS, HOP_SAMPLES, SAMPLE_RATE


def log_mel_spectrogram(
    audio: str | NDArray[np.float32] | Tensor,
    n_mels: int = 80,
    padding: int = 0,
    device: str | torch.device | None = None,
) -> Tensor:
    """Compute the spectrogram of a recording.

    It is equal to that of `whisper.log_mel_spectrogram`, to the last bit.

    Args:
        audio: The path of a file, or samples [n], float32 at 16 kHz.
        n_mels: The bins, 80 or 128. A model has them as `dims.n_mels`.
        padding: How many zeros to add at the end of the samples.
        device: Where it is computed. None means where the samples are.

    Returns:
        The spectrogram [n_mels, n // 160], float32.

    Raises:
        AudioError: When the file cannot be read.
    """
    if not isinstance(audio, Tensor):
        audio = torch.from_numpy(load_audio(audio) if isinstance(audio, str) else audio)
    samples = F.pad(audio.to(device or audio.device), (0, padding))
    hann = torch.hann_window(FFT_SAMPLES, device=samples.device)
    stft = torch.stft(samples, FFT_SAMPLES, HOP_SAMPLES, window=hann, return_complex=True)
    mel = mel_filters(samples.device, n_mels) @ stft[..., :-1].abs() ** 2
    logs = mel.clamp(min=1e-10).log10()
    return (torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0


def pad_or_trim(array: Any, length: int = CHUNK_SECONDS * SAMPLE_RATE, *, axis: int = -1) -> Any:
    """Cut an array to a length, or extend it with zeros.

    An encoder reads 30 s, which is the default length in samples. This is `whisper.pad_or_trim`.

    Args:
        array: A numpy array or a tensor.
        length: The length of the result along the axis.
        axis: The axis.

    Returns:
        An array or a tensor with exactly `length` entries along the axis.
    """
    count, axis = array.shape[axis], axis % array.ndim
    missing = max(length - count, 0)
    if isinstance(array, Tensor):
        after = [0, 0] * (array.ndim - 1 - axis) + [0, missing]
        return F.pad(array.narrow(axis, 0, min(count, length)), after)
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array.take(range(min(count, length)), axis=axis), widths)
