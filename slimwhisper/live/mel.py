"""The log-mel spectrogram of audio that is still going on: only new frames are computed."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.mel import FFT_SAMPLES, HALF, RANGE, log_mel
from slimwhisper.types import HOP_SAMPLES

SILENCE = -10.0  # log10 of the least power that whisper tells apart


class LiveMel:
    """A buffer of audio, which grows at its end and is cut at its beginning.

    `window` has the values of `audio.mel.first_window` for the same samples, within rounding. After
    a cut, the first frames also overlap the audio before it, which `first_window` does not know.
    """

    def __init__(self, n_mels: int, width: int) -> None:
        """width: mel frames of a window."""
        self.n_mels, self.width = n_mels, width
        self._logs = torch.empty(n_mels, 0)  # log10 of the frames that no later sample changes
        # from HALF samples before the first frame that is still to be computed
        self._samples: NDArray[np.float32] = np.empty(0, np.float32)
        self._reflected = False  # `_samples` begins HALF samples before the buffer
        self._later: list[NDArray[np.float32]] = []  # not in `_samples` yet
        self.samples = 0  # of the buffer

    @property
    def frames(self) -> int:
        """Whole mel frames of the buffer."""
        return self.samples // HOP_SAMPLES

    @property
    def complete(self) -> int:
        """Those that no later sample changes."""
        self._compute()
        return self._logs.shape[1]

    def append(self, samples: NDArray[np.float32]) -> None:
        """float32 [n] at 16 kHz, after those that are there."""
        self._later.append(samples)
        self.samples += len(samples)

    def window(self, frames: int) -> Tensor:
        """[n_mels, width] float32: the first `frames` mel frames, then silence. If they are the
        whole buffer, its last samples too, which overlap the frames after them.
        """
        self._compute()
        mel = torch.full((self.n_mels, self.width), SILENCE)
        known = self._logs[:, : self.width if frames == self.frames else frames]
        mel[:, : known.shape[1]] = known
        if frames == self.frames:
            heard = self._samples if self._reflected else _reflect(self._samples)
            rest = self._logs_of(np.pad(heard, (0, FFT_SAMPLES)))
            stop = min(known.shape[1] + rest.shape[1], self.width)
            mel[:, known.shape[1] : stop] = rest[:, : stop - known.shape[1]]
        return mel.maximum(mel.max() - RANGE).add_(4.0).div_(4.0)

    def cut(self, frames: int) -> None:
        """Forget the first `frames` mel frames, which must be complete."""
        assert frames <= self.complete
        self._logs = self._logs[:, frames:].clone()
        self.samples -= frames * HOP_SAMPLES

    def loudness(self, start: int, stop: int) -> Tensor:
        """[stop - start] float32: the power of each of these mel frames, over all bins."""
        self._compute()
        return (10 ** self._logs[:, start:stop]).sum(dim=0)

    def _compute(self) -> None:
        """The frames that have become complete."""
        if not self._later:
            return
        self._samples = np.concatenate([self._samples, *self._later])
        self._later.clear()
        if not self._reflected:
            if len(self._samples) <= HALF:
                return
            self._samples = _reflect(self._samples)
            self._reflected = True
        new = self._logs_of(self._samples)
        if new.shape[1]:
            self._logs = torch.cat([self._logs, new], dim=1)
            self._samples = self._samples[new.shape[1] * HOP_SAMPLES :].copy()

    def _logs_of(self, samples: NDArray[np.float32]) -> Tensor:
        """float32 [n], from HALF samples before the first frame on -> [n_mels, its whole frames]"""
        if len(samples) < FFT_SAMPLES:
            return torch.empty(self.n_mels, 0)
        return log_mel(samples, self.n_mels)


def _reflect(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [n] -> [HALF + n]: mirrored at the first sample, as whisper begins a recording."""
    known = np.pad(samples, (0, max(HALF + 1 - len(samples), 0)))
    return np.concatenate([known[HALF:0:-1], samples])
