"""Reads recordings: paths, bytes, file objects or arrays become samples at 16 kHz, mono.

Files are decoded with FFmpeg's libraries (PyAV), so the `ffmpeg` program is not needed. The samples
are those that `whisper.load_audio` gets from the program of the same version. They are equal to the
last bit for lossless files without resampling, and else within a few 16-bit steps; the program may
have another decoder for a lossy codec. Unlike there, the silence before sound that starts late in
its file, and in gaps, is in the samples, and a file that ends early is an error.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from slimwhisper.audio.samples import (
    MAX_CHANNELS,
    ArraySamples,
    Excerpts,
    ReadOptions,
    RemoteFile,
    Samples,
    Source,
    StoredSamples,
    channels_of,
    name_for_messages,
    named_channels,
    open_source,
    pieces_of,
    read_file,
)
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.option_group import check_count
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

Reader = Callable[[Source | RemoteFile, ReadOptions], tuple[str, StoredSamples]]
AudioSource = Source | RemoteFile | NDArray[Any] | torch.Tensor


def load_audio(
    file: Source,
    sr: int = SAMPLE_RATE,
    *,
    allow_truncated: bool = False,
    audio_track: str | int | None = None,
) -> NDArray[np.float32]:
    """Decode the audio of a file. This is `whisper.load_audio`.

    Of several audio streams, the one is decoded that the `ffmpeg` program would choose: the one
    that is marked as default, then the one with most channels, then the first. Packets that cannot
    be decoded become silence.

    Args:
        file: A path, which is never a URL; the bytes of a file; or a binary file object, which is
            read to its end and left open.
        sr: The rate in Hz. It must be 16,000, the rate of all models; `whisper`'s function has this
            argument.
        allow_truncated: Whether to accept a file that ends early.
        audio_track: Which of several audio streams to decode: a number from 1, or a language such
            as "en". None means the default one.

    Returns:
        The samples, float32 [n] in [-1, 1) at 16 kHz. Channels are mixed to mono.

    Raises:
        AudioError: When there is no such file, no audio in it or no such track, or when the file
            ends early or more than half of it is damaged.
        OptionError: When `sr` is another number.
    """
    if sr != SAMPLE_RATE:
        raise OptionError(f"sr={sr!r}: models need {SAMPLE_RATE} Hz; leave sr out, and resample")
    name, opened = open_source(file)
    with opened:
        how = ReadOptions(allow_truncated, audio_track=audio_track)
        samples = np.concatenate(list(pieces_of(name, opened, how)))
    return np.multiply(samples, np.float32(1 / 32768), dtype=np.float32)


def load_samples(
    source: AudioSource,
    *,
    sample_rate: int = SAMPLE_RATE,
    allow_truncated: bool = False,
    audio_track: str | int | None = None,
    read: Reader = read_file,
) -> Samples:
    """Open a recording to read its samples in parts. The caller closes them.

    The samples of a long file are stored on disk, so memory does not grow with its length.

    Args:
        source: The recording, as in `as_waveform`. An array without samples, [0], is allowed.
        sample_rate: The rate of an array in Hz.
        allow_truncated: Whether to accept a file that ends early.
        audio_track: Which of several audio streams to decode, as in `load_audio`.
        read: What decodes a file. The default is this thread.

    Returns:
        The samples, those of `as_waveform`.

    Raises:
        AudioError: When the recording cannot be read, or the disk is full.
        OptionError: When the rate is below 1, or given beside a file.
    """
    if isinstance(source, (np.ndarray, torch.Tensor)):
        if list(source.shape) == [0]:  # what a microphone's loop may give: nothing was said
            return ArraySamples(np.zeros(0, np.float32))
        return ArraySamples(as_waveform(source, sample_rate=sample_rate))
    _check_rate(sample_rate, for_file=True)
    _, samples = read(source, ReadOptions(allow_truncated, audio_track=audio_track))
    return _excerpt(source, samples)


def load_channels(
    source: AudioSource,
    names: Sequence[str] = (),
    *,
    sample_rate: int = SAMPLE_RATE,
    allow_truncated: bool = False,
    audio_track: str | int | None = None,
    read: Reader = read_file,
) -> dict[str, Samples]:
    """Open a recording to read the samples of each of its channels. Closing one of them closes all.

    Args:
        source: The recording, as in `load_samples`.
        names: The names of the channels. Without any they are those of `channel_names`.
        sample_rate: The rate of an array in Hz.
        allow_truncated: Whether to accept a file that ends early.
        audio_track: Which of several audio streams to decode, as in `load_audio`.
        read: What decodes a file. The default is this thread.

    Returns:
        The samples of each channel by its name, in the order of the channels.

    Raises:
        AudioError: When the recording cannot be read, the disk is full, or the names do not fit.
        OptionError: When the rate is below 1, or given beside a file.
    """
    if isinstance(source, (np.ndarray, torch.Tensor)):
        axis = _channel_axis(source.shape)
        rows: Any = [source] if axis is None else source.T if axis else source
        waveforms = [as_waveform(row, sample_rate=sample_rate) for row in rows]
        return named_channels(list(map(ArraySamples, waveforms)), names, "audio array")
    _check_rate(sample_rate, for_file=True)
    name, samples = read(source, ReadOptions(allow_truncated, split=True, audio_track=audio_track))
    channels = named_channels(channels_of(samples), names, name)
    return {speaker: _excerpt(source, channel) for speaker, channel in channels.items()}


def stem_of(source: AudioSource) -> str:
    """Return the name of a recording without its folder and its suffix.

    Args:
        source: The recording.

    Returns:
        The name, or "" if it has none.
    """
    return Path(str(source)).stem if isinstance(source, (str, PathLike, RemoteFile)) else ""


def _excerpt(source: Source | RemoteFile, samples: Samples) -> Samples:
    """The part of the samples that the source is."""
    if not isinstance(source, RemoteFile) or source.excerpt is None:
        return samples
    start, end = source.excerpt
    stop = len(samples) if end is None else round(end * SAMPLE_RATE)
    part = Excerpts(samples, [(round(start * SAMPLE_RATE), stop)])
    if not len(part):
        what = f"no audio from {start:g} s on, as it ends at {len(samples) / SAMPLE_RATE:.3f} s"
        samples.close()
        where = name_for_messages(str(source))
        raise AudioError(f"{where}: {what}; check the manifest's offset and duration")
    return part


def as_waveform(audio: AudioSource, *, sample_rate: int = SAMPLE_RATE) -> NDArray[np.float32]:
    """Convert a file or samples to a waveform at 16 kHz, mono.

    Samples are float16, bfloat16, float32 or float64 in [-1, 1], or int16, int32 or uint8 PCM.
    Their shape is [n], [channels, n], or [n, channels], as soundfile reads them. The second axis
    has the channels if it is at most 8 long and shorter than the first one, and else the first axis
    has them. Channels are averaged. The input is never changed, but the result may share its
    memory.

    Args:
        audio: A file as in `load_audio`, or an array or a tensor of samples.
        sample_rate: The rate of the samples in Hz.

    Returns:
        The waveform, float32 [n].

    Raises:
        AudioError: When a file cannot be read, or when a shape, a dtype or values are not those of
            audio: empty, NaN or infinite.
        OptionError: When the rate is below 1, or given beside a file.
    """
    rate = _check_rate(sample_rate, for_file=not isinstance(audio, (np.ndarray, torch.Tensor)))
    if isinstance(audio, torch.Tensor):
        audio = audio.detach().cpu()
        audio = (audio.float() if audio.dtype == torch.bfloat16 else audio).numpy()
    if isinstance(audio, RemoteFile):
        with closing(load_samples(audio)) as samples:
            return samples.read(0, len(samples))
    if not isinstance(audio, np.ndarray):
        return load_audio(audio)

    channel_axis = _channel_axis(audio.shape)
    waveform = _scale(audio)
    if channel_axis is not None:
        waveform = waveform.mean(axis=channel_axis, dtype=np.float32)
    waveform = resample(np.ascontiguousarray(waveform), rate)
    if waveform.size == 0:
        raise AudioError(f"audio array of {audio.size} samples at {rate} Hz is too short")
    return waveform


def _channel_axis(shape: Sequence[int]) -> int | None:
    """The axis of an array that holds the channels; None: there is only one channel, [n]. Raises
    AudioError for an array that is empty, or of another shape.
    """
    if 0 in shape:
        raise AudioError(f"audio array of shape {list(shape)} is empty: give at least one sample")
    axis = int(len(shape) == 2 and shape[1] <= MAX_CHANNELS and shape[1] < shape[0])
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[axis] > MAX_CHANNELS):
        layouts = f"[n], [channels, n] or [n, channels] with at most {MAX_CHANNELS} channels"
        raise AudioError(f"audio array has shape {list(shape)}: give {layouts}")
    return axis if len(shape) == 2 else None


def _check_rate(sample_rate: int, *, for_file: bool) -> int:
    """`sample_rate` as an int, if it is valid for the source."""
    rate = check_count("sample_rate", sample_rate)
    if for_file and rate != SAMPLE_RATE:
        raise OptionError(f"sample_rate={rate} is for arrays: a file states its own rate")
    return rate


def resample(waveform: NDArray[np.float32], source_rate: int) -> NDArray[np.float32]:
    """Convert a waveform to 16 kHz.

    Args:
        waveform: The waveform, float32 [n].
        source_rate: Its rate in Hz.

    Returns:
        The waveform at 16 kHz, float32 [n * 16000 / source_rate].
    """
    if source_rate == SAMPLE_RATE:
        return waveform
    function, _ = _torchaudio_resample()
    if function is None:
        return soxr.resample(waveform, source_rate, SAMPLE_RATE, quality="HQ")
    # a copy: from_numpy warns about a read-only array
    return function(torch.tensor(waveform), source_rate, SAMPLE_RATE).numpy()


def resampler() -> tuple[str, str]:
    """Report which package `resample` uses.

    Returns:
        "torchaudio" or "soxr", and the reason in one line.
    """
    function, reason = _torchaudio_resample()
    return ("soxr" if function is None else "torchaudio"), reason


@cache
def _torchaudio_resample() -> tuple[Callable[..., torch.Tensor] | None, str]:
    """torchaudio's resample ([n] -> [n']), or None if it does not import; and the reason."""
    try:
        import torchaudio
        import torchaudio.functional

        return torchaudio.functional.resample, f"torchaudio {torchaudio.__version__} imports"
    except (ImportError, OSError, RuntimeError) as error:  # such as its CUDA build with a CPU torch
        return None, f"torchaudio does not import: {error_line(error, kind=True)}"


def _scale(samples: NDArray[Any]) -> NDArray[np.float32]:
    """PCM or float samples [...] -> float32 [...] in [-1, 1]."""
    kind, size = samples.dtype.kind, samples.dtype.itemsize
    if (kind, size) in (("i", 2), ("i", 4)):
        return samples.astype(np.float32) / np.float32(2.0 ** (8 * size - 1))
    if (kind, size) == ("u", 1):
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    if kind != "f" or size > 8:
        kinds = "float in [-1, 1], int16, int32 or uint8"
        raise AudioError(f"audio array has dtype {samples.dtype}: give {kinds}")
    return check_values(samples)


def check_values(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Convert floating samples to float32.

    Args:
        samples: The samples [...], any number of them.

    Returns:
        The samples, float32 [...].

    Raises:
        AudioError: When a value is NaN or infinite, or far outside [-1, 1].
    """
    # NaN stays NaN
    peak = max(abs(float(samples.min(initial=0))), abs(float(samples.max(initial=0))))
    if not np.isfinite(peak):
        raise AudioError("audio array holds NaN or infinite values: give finite float32 samples")
    if peak > 100:  # 40 dB over full scale is not an overshoot
        what = f"audio array reaches {peak:g}"
        raise AudioError(f"{what}: give float in [-1, 1] (16-bit values / 32768)")
    return samples.astype(np.float32, copy=False)
