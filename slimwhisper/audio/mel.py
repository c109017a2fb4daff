"""Samples -> windows of the log-mel spectrogram, with the values of openai-whisper's; and the
functions of `whisper.audio`, for scripts that were written for it.
"""

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.samples import ArraySamples, Samples
from slimwhisper.cores import find_cores, use_threads
from slimwhisper.types import (
    CHUNK_SECONDS,
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    SAMPLE_RATE,
    WHOLE,
    WINDOW_FRAMES,
)

FFT_SAMPLES = 400  # of one frame
HALF = FFT_SAMPLES // 2  # on either side of the frame's time
RANGE = 8.0  # from the floor to the loudest bin of the recording, in powers of ten
BLOCK_SAMPLES = WINDOW_FRAMES * HOP_SAMPLES
KEPT_BLOCKS = 4  # recordings under two minutes are computed once; 1.5 MB each with 128 bins
NEAR = 2000  # mel frames, as few as cost OpenAI's weights no English words
AHEAD_THREADS = 2  # at most: a block takes 10 ms of a core, so two prepare 200 windows a second


def without_silence(mel: Tensor, frames: int, audio_window: str | None) -> Tensor:
    """A window [n_mels, w] whose first `frames` mel frames hold audio -> [n_mels, at most w]: these
    up to a whole second ("auto"), at least `NEAR` of them ("near"), or all ("full", None).
    """
    if audio_window in WHOLE:
        return mel
    frames = max(frames, 1) if audio_window == "auto" else max(frames + 50, NEAR)
    return mel[:, : -(-frames // FRAMES_PER_SECOND) * FRAMES_PER_SECOND]


class Spectrogram:
    """The log-mel spectrogram of a recording, computed as its windows are requested.

    The values are those of `whisper.audio.log_mel_spectrogram` with 30 s of zeros appended. They
    are computed in blocks of 3000 frames, and the last few blocks are kept: at most `KEPT_BLOCKS`.
    Those that follow a window are computed in other threads, while the caller works on the window.
    The methods are not thread-safe; the samples must be readable from several threads.
    """

    def __init__(
        self,
        samples: Samples,
        n_mels: int,
        width: int = WINDOW_FRAMES,
        audio_window: str | None = None,
    ) -> None:
        """Reads all of `samples` once: the floor depends on the loudest bin.

        width: mel frames of a window, at most 3000. audio_window: as in `Options`.
        """
        self.samples, self.audio_window = samples, audio_window
        self.n_mels, self.width = n_mels, width
        self.frames = len(samples) // HOP_SAMPLES  # content frames; silence follows
        # [n_mels, 3000] each, or in progress in other threads; most recently used last
        self._blocks: dict[int, Tensor | Future[Tensor]] = {}
        _spectrograms.add(self)
        # up to two frames after the content still overlap it, all others are silent
        blocks = (len(samples) + HALF) // BLOCK_SAMPLES + 1
        # as floats: small tensors between the blocks would fragment the heap
        self._floor = torch.tensor(max(self._block(i).max().item() for i in range(blocks))) - RANGE

    def window(self, start: int, frames: int) -> Tensor:
        """[n_mels, width] float32: `frames` mel frames (at most width) from `start`, then zeros."""
        stop = min(start + frames, self.frames + WINDOW_FRAMES)  # whisper's spectrogram ends there
        mel = torch.zeros(self.n_mels, self.width)
        at = start
        while at < stop:
            index, skipped = divmod(at, WINDOW_FRAMES)
            part = self._block(index)[:, skipped : skipped + stop - at]
            target = mel.narrow(1, at - start, part.shape[1])
            torch.maximum(part, self._floor, out=target).add_(4.0).div_(4.0)
            at += part.shape[1]
        self._prepare(stop)
        return mel

    def for_encoder(self, start: int, frames: int) -> Tensor:
        """The same, but [n_mels, w], w at most width, where windows are as long as their audio."""
        return without_silence(self.window(start, frames), frames, self.audio_window)

    def close(self) -> None:
        """Close the samples; no window can be computed afterwards."""
        for block in self._blocks.values():
            if isinstance(block, Future) and not block.cancel():
                block.exception()  # wait: it reads the samples
        self._blocks.clear()
        self.samples.close()

    def drop_unfinished(self) -> None:
        """Forget the blocks in progress in other threads."""
        self._blocks = {i: b for i, b in self._blocks.items() if isinstance(b, Tensor)}

    def _block(self, index: int) -> Tensor:
        """[n_mels, 3000] float32: log10 of the frames from 3000 * index on, without the floor."""
        block = self._blocks.pop(index, None)
        if isinstance(block, Future):  # compute it here, unless the other thread has begun
            block = None if block.cancel() else block.result()
        if block is None:
            block = self._compute(index)
        self._keep(index, block)
        return block

    def _prepare(self, start: int) -> None:
        """Begin to compute the window from mel frame `start` on, which is probably the next."""
        stop = min(start + self.width, self.frames)
        for index in range(start // WINDOW_FRAMES, -(-stop // WINDOW_FRAMES)):
            if index not in self._blocks:
                self._keep(index, _pool().submit(self._compute, index))

    def _keep(self, index: int, block: "Tensor | Future[Tensor]") -> None:
        """Keep a block, [n_mels, 3000] float32, as the most recently used."""
        self._blocks[index] = block
        if len(self._blocks) > KEPT_BLOCKS:
            oldest = self._blocks.pop(next(iter(self._blocks)))
            if isinstance(oldest, Future):
                oldest.cancel()

    def _compute(self, index: int) -> Tensor:
        """The result of `_block`, [n_mels, 3000] float32."""
        # always 3000 frames: only a matrix product of this size gives whisper's values to the bit
        audio = np.zeros(BLOCK_SAMPLES - HOP_SAMPLES + FFT_SAMPLES, np.float32)
        start = index * BLOCK_SAMPLES - HALF
        before = max(-start, 0)
        samples = self.samples.read(start + before, start + len(audio))
        end = before + len(samples)
        audio[before:end] = samples  # zeros follow
        if index == 0:  # whisper reflects the beginning at the first sample
            audio[:HALF] = audio[FFT_SAMPLES:HALF:-1]
        return log_mel(audio, self.n_mels, -(-end // HOP_SAMPLES))


_spectrograms: "weakref.WeakSet[Spectrogram]" = weakref.WeakSet()


def _after_fork() -> None:
    """In the child, no other thread goes on with the blocks that were begun."""
    _pool.cache_clear()
    for spectrogram in list(_spectrograms):
        spectrogram.drop_unfinished()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def log_mel(samples: NDArray[np.float32], n_mels: int, heard: int | None = None) -> Tensor:
    """float32 [n] at 16 kHz -> log10 [n_mels, frames] float32, without whisper's floor.

    The first frame begins with the first sample; n is at least FFT_SAMPLES, and the last frame is
    the last that is whole. heard: frames after which all samples are 0; None: none is known. It
    saves time, as only the matrix product has to be of all frames.
    """
    filters, hann = _filters_and_window(n_mels)
    frames = (len(samples) - FFT_SAMPLES) // HOP_SAMPLES + 1
    heard = frames if heard is None else min(max(heard, 1), frames)
    stft = torch.stft(
        torch.from_numpy(samples[: (heard - 1) * HOP_SAMPLES + FFT_SAMPLES]),
        FFT_SAMPLES,
        HOP_SAMPLES,
        window=hann,
        center=False,
        return_complex=True,
    )
    power = torch.zeros(frames, len(stft)).T
    torch.square(stft.abs(), out=power[:, :heard])
    mel: Tensor = filters @ power
    mel[:, heard:] = -10.0
    mel[:, :heard].clamp_(min=1e-10).log10_()
    return mel


def mel_filters(device: str | torch.device, n_mels: int) -> Tensor:
    """openai-whisper's table (MIT licence: THIRD_PARTY.md), [n_mels, 201] float32, for 80 or 128
    rows.
    """
    with as_file(files("slimwhisper").joinpath("mel_filters.npz")) as path, np.load(path) as data:
        return torch.from_numpy(data[f"mel_{n_mels}"]).to(device)


@cache
def _filters_and_window(n_mels: int) -> tuple[Tensor, Tensor]:
    """whisper's filters, [n_mels, 201], and the window of a frame, [FFT_SAMPLES]."""
    return mel_filters("cpu", n_mels), torch.hann_window(FFT_SAMPLES)


@cache
def _pool() -> ThreadPoolExecutor:
    """The threads that compute ahead, for all recordings; loaders' threads may be busy."""
    count = min(AHEAD_THREADS, find_cores().usable)
    return ThreadPoolExecutor(count, "slimwhisper-mel", initializer=use_threads)


def first_window(waveform: NDArray[np.float32], n_mels: int, width: int = WINDOW_FRAMES) -> Tensor:
    """float32 [n] at 16 kHz -> [n_mels, width]: its first window, padded with silence."""
    return Spectrogram(ArraySamples(waveform), n_mels, width).window(0, width)


def calibration_mel(n_mels: int, width: int = WINDOW_FRAMES) -> Tensor:
    """A window of seeded noise in syllable-like bursts, [n_mels, width], for the guard.

    The encoder's output for it is closer to that for speech than random features would be.
    """
    samples = torch.randn(BLOCK_SAMPLES, generator=torch.Generator().manual_seed(0))
    seconds = torch.arange(len(samples)) / SAMPLE_RATE
    bursts = torch.sin(2 * torch.pi * 2 * seconds).clamp(min=0)  # two per second, with gaps
    return first_window((0.1 * samples * bursts).numpy(), n_mels, width)


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
