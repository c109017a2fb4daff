"""Waveform -> log-mel spectrogram, by openai-whisper's own function."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.types import CHUNK_SECONDS, SAMPLE_RATE, WINDOW_FRAMES


def log_mel(waveform: np.ndarray, n_mels: int) -> Tensor:
    """float32 [n] at 16 kHz -> float32 [n_mels, n // 160 + 3000]: 30 s of silence follow.

    The floor is 8 below the loudest bin of the whole recording, so this sees all of it at once.
    """
    from whisper.audio import log_mel_spectrogram

    mel: Tensor = log_mel_spectrogram(waveform, n_mels, padding=CHUNK_SECONDS * SAMPLE_RATE)
    return mel


def first_window(waveform: np.ndarray, n_mels: int) -> Tensor:
    """float32 [n] at 16 kHz -> [n_mels, 3000]: its first 30 s, silence where it is shorter."""
    return log_mel(waveform, n_mels)[:, :WINDOW_FRAMES]


def window(mel: Tensor, start: int, frames: int) -> Tensor:
    """[n_mels, n] -> [n_mels, 3000]: `frames` mel frames from `start`, then zeros."""
    return F.pad(mel[:, start : start + frames], (0, WINDOW_FRAMES - frames))


def calibration_mel(n_mels: int) -> Tensor:
    """A window of seeded noise in syllable-like bursts, [n_mels, 3000]: for the guard.

    What the encoder makes of it lies nearer to what it makes of speech than noise at the
    decoder's door would.
    """
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(CHUNK_SECONDS * SAMPLE_RATE, generator=generator)
    seconds = torch.arange(len(samples)) / SAMPLE_RATE
    bursts = torch.sin(2 * torch.pi * 2 * seconds).clamp(min=0)  # four a second, with gaps
    return first_window((0.1 * samples * bursts).numpy(), n_mels)
