"""How much of a window has sound, from its spectrogram.

Levels do not tell speech from music. They do tell both from silence and steady noise, where Whisper
invents text.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from slimwhisper.types import FRAMES_PER_SECOND

BACKGROUND_QUANTILE = 0.1  # of the levels of a window's frames
RISE = 6.0  # dB over the background; steady noise stays within three
INAUDIBLE = -60.0  # dB: lower backgrounds do not matter
REACH = 10  # mel frames of 10 ms before and after sound, for the dips within words


def has_sound(mel: Tensor) -> Tensor:
    """A window's log-mel spectrogram [n_mels, frames], as Whisper normalises it, without padding
    -> bool [frames]: whether a frame is louder than the window's background.
    """
    if mel.shape[1] == 0:
        return torch.zeros(0, dtype=torch.bool)
    power = (mel.float() * 4 - 4) * (torch.log(torch.tensor(10.0)))  # whisper: (log10 + 4) / 4
    level = 10 * power.logsumexp(dim=0) / torch.log(torch.tensor(10.0))
    level -= 10 * torch.log10(torch.tensor(float(mel.shape[0])))  # the bins' mean
    background = level.quantile(BACKGROUND_QUANTILE).clamp(min=INAUDIBLE - RISE)
    loud = (level > background + RISE).float()
    width = 2 * REACH + 1
    return torch.nn.functional.max_pool1d(loud[None], width, stride=1, padding=REACH)[0] > 0


class WindowSound:
    """How many seconds of a window have sound; computed at the first call."""

    def __init__(self, mel: Callable[[], Tensor], offset: float) -> None:
        """mel: returns [n_mels, frames], without padding. offset: of its start, in seconds."""
        self._mel, self._offset = mel, offset
        self._has_sound: Tensor | None = None

    def __call__(self, start: float, end: float) -> float:
        """Seconds of sound between two times of the recording."""
        if self._has_sound is None:
            self._has_sound = has_sound(self._mel())
        first, last = (max(round((t - self._offset) * FRAMES_PER_SECOND), 0) for t in (start, end))
        return float(self._has_sound[first:last].sum()) / FRAMES_PER_SECOND
