"""How much of a window sounds like something, from the spectrogram that was decoded anyway.

Levels alone do not tell speech from music. They do tell both from silence and from steady noise,
which is where Whisper invents.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from slimwhisper.types import FRAMES_PER_SECOND

QUIET_SHARE = 0.1  # of a window's frames: at most this many are its background
RISE = 6.0  # dB over the background; steady noise stays within three
INAUDIBLE = -60.0  # dB: a background as quiet as this does not matter
REACH = 10  # mel frames of 10 ms before and after, for the dips within words


def sounding(mel: Tensor) -> Tensor:
    """A window's log-mel spectrogram [n_mels, frames], as Whisper normalises it, without padding
    -> bool [frames]: it is louder there than the window's background.
    """
    if mel.shape[1] == 0:
        return torch.zeros(0, dtype=torch.bool)
    power = (mel.float() * 4 - 4) * (torch.log(torch.tensor(10.0)))  # whisper: (log10 + 4) / 4
    level = 10 * power.logsumexp(dim=0) / torch.log(torch.tensor(10.0))
    level -= 10 * torch.log10(torch.tensor(float(mel.shape[0])))  # the bins' mean
    background = level.quantile(QUIET_SHARE).clamp(min=INAUDIBLE - RISE)
    loud = (level > background + RISE).float()
    width = 2 * REACH + 1
    return torch.nn.functional.max_pool1d(loud[None], width, stride=1, padding=REACH)[0] > 0


class WindowSound:
    """How many seconds of a window sound like something; looked at only when asked."""

    def __init__(self, mel: Callable[[], Tensor], offset: float) -> None:
        """mel: gives [n_mels, frames], without padding. offset: of its start, in seconds."""
        self._mel, self._offset = mel, offset
        self._sounding: Tensor | None = None

    def __call__(self, start: float, end: float) -> float:
        """Seconds of sound between two times of the recording."""
        if self._sounding is None:
            self._sounding = sounding(self._mel())
        first, last = (max(round((t - self._offset) * FRAMES_PER_SECOND), 0) for t in (start, end))
        return float(self._sounding[first:last].sum()) / FRAMES_PER_SECOND
