"""The log-mel spectrogram of growing audio: only new frames are computed."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.mel import FFT_SAMPLES, HALF, RANGE, log_mel
from slimwhisper.types import HOP_SAMPLES, MEL_FRAMES_PER_POSITION

SILENCE = -10.0  # log10 of the lowest power, to which whisper clips


class LiveMel:
    """A buffer of audio that grows at its end and is cut at its beginning.

    `window` equals `audio.mel.first_window` of the same samples, within rounding. After a cut, the
    first frames also overlap the audio before it, which `first_window` does not have.
    """

    def __init__(self, n_mels: int, width: int) -> None:
        """width: mel frames of a window."""
        self.n_mels, self.width = n_mels, width
        self._logs = torch.empty(n_mels, 0)  # log10 of the complete frames
        # from HALF samples before the first incomplete frame
        self._samples: NDArray[np.float32] = np.empty(0, np.float32)
        self._reflected = False  # `_samples` begins HALF samples before the buffer
        self._pending: list[NDArray[np.float32]] = []  # not in `_samples` yet
        self.samples = 0  # the buffer's length

    @property
    def frames(self) -> int:
        """Whole mel frames of the buffer."""
        return self.samples // HOP_SAMPLES

    @property
    def complete(self) -> int:
        """Complete mel frames, which no later sample changes."""
        self._compute()
        return self._logs.shape[1]

    def append(self, samples: NDArray[np.float32]) -> None:
        """Append samples, float32 [n] at 16 kHz."""
        self._pending.append(samples)
        self.samples += len(samples)

    def logs(self, frames: int) -> Tensor:
        """[n_mels, n] float32: log10 of the power of the first complete mel frames, at most
        `frames`, of whole encoder positions.
        """
        whole = min(frames, self.complete) // MEL_FRAMES_PER_POSITION
        return self._logs[:, : whole * MEL_FRAMES_PER_POSITION].clone()

    def window(self, frames: int, before: Tensor | None = None) -> Tensor:
        """[n_mels, width] float32: `logs` of what was before, the first `frames` mel frames, then
        silence. If they are the whole buffer, the frames after them include its last samples, which
        overlap them.
        """
        self._compute()
        mel = torch.full((self.n_mels, self.width), SILENCE)
        computed = self._logs[:, : self.width if frames == self.frames else frames]
        if before is not None:
            computed = torch.cat([before, computed], dim=1)[:, : self.width]
        mel[:, : computed.shape[1]] = computed
        if frames == self.frames:
            samples = self._samples if self._reflected else _reflect(self._samples)
            tail = self._log_mel(np.pad(samples, (0, FFT_SAMPLES)))
            stop = min(computed.shape[1] + tail.shape[1], self.width)
            mel[:, computed.shape[1] : stop] = tail[:, : stop - computed.shape[1]]
        return mel.maximum(mel.max() - RANGE).add_(4.0).div_(4.0)

    def cut(self, frames: int) -> None:
        """Remove the first `frames` mel frames, which must be complete."""
        assert frames <= self.complete
        self._logs = self._logs[:, frames:].clone()
        self.samples -= frames * HOP_SAMPLES

    def loudness(self, start: int, stop: int) -> Tensor:
        """[stop - start] float32: the power of each of these mel frames, over all bins."""
        self._compute()
        return (10 ** self._logs[:, start:stop]).sum(dim=0)

    def _compute(self) -> None:
        """Compute the frames that the pending samples complete."""
        if not self._pending:
            return
        self._samples = np.concatenate([self._samples, *self._pending])
        self._pending.clear()
        if not self._reflected:
            if len(self._samples) <= HALF:
                return
            self._samples = _reflect(self._samples)
            self._reflected = True
        new = self._log_mel(self._samples)
        if new.shape[1]:
            self._logs = torch.cat([self._logs, new], dim=1)
            self._samples = self._samples[new.shape[1] * HOP_SAMPLES :].copy()

    def _log_mel(self, samples: NDArray[np.float32]) -> Tensor:
        """float32 [n], from HALF samples before the first frame -> [n_mels, whole frames]"""
        if len(samples) < FFT_SAMPLES:
            return torch.empty(self.n_mels, 0)
        return log_mel(samples, self.n_mels)


def _reflect(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [n] -> [HALF + n]: mirrored at the first sample, as whisper begins a recording."""
    padded = np.pad(samples, (0, max(HALF + 1 - len(samples), 0)))
    return np.concatenate([padded[HALF:0:-1], samples])
