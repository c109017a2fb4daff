"""Path, bytes, file object or array -> float32 waveform [n], 16 kHz, mono.

Files are decoded by FFmpeg's libraries through PyAV, to the samples that `whisper.load_audio` gets
from the `ffmpeg` program, which is not needed. Unlike it, a file that ends early is an error.
"""

import io
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import chain
from operator import index
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import av
import numpy as np
import soundfile
import soxr
import torch
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

from slimwhisper.errors import AudioError, OptionError
from slimwhisper.types import SAMPLE_RATE

AUDIO_SUFFIXES = frozenset(
    ".3g2 .3gp .aac .ac3 .aif .aifc .aiff .amr .ape .asf .au .avi .caf .dts .eac3 .flac .flv .m2ts"
    " .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg .mpg .mpga .mts .oga .ogg .ogv .opus .spx"
    " .tta .w64 .wav .webm .wma .wmv .wv".split()
)
MAX_CHANNELS = 8  # tells [channels, n] from a batch or a spectrogram

# Formats whose header states the duration; of others FFmpeg guesses it from bit rate or timestamps.
TIMED = {"wav", "flac", "mp3", "aiff", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
GAPLESS = {"flac", "ogg"}  # decoding much less than the duration is damage, not silence
SLACK = 0.25  # seconds by which an intact file may miss its header: codec delay, padding
UNKNOWN_WAV_BYTES = 0x7FFF_0000  # a recorder that writes to a pipe states at least this size
FFMPEG_ERRORS = (av.error.FFmpegError, OSError, ValueError)  # Python's two come from file reads

Source = str | os.PathLike[str] | bytes | BinaryIO  # what load_audio takes
AudioSource = Source | NDArray[Any] | torch.Tensor  # what as_waveform takes


def load_audio(source: Source, *, allow_truncated: bool = False) -> NDArray[np.float32]:
    """Decode the audio of a file: float32 [n] in [-1, 1), 16 kHz, channels mixed to mono.

    `source` is a path (never a URL), a file's bytes, or a binary file object, which is read to its
    end and left open. Of several audio streams the one that the ffmpeg program would choose is
    taken: marked as default, then with most channels, then first. Packets that do not decode are
    skipped, as the program does. `allow_truncated` accepts a file that ends early.

    Raises AudioError: no such file, no audio in it, more than half of it damaged, or truncated.
    """
    name, file = _open(source)
    with file:
        samples = _read_plain_wav(file)
        if samples is None:
            samples = _decode(name, file, allow_truncated)
    return np.multiply(samples, np.float32(1 / 32768), dtype=np.float32)


def as_waveform(
    audio: AudioSource,
    *,
    sample_rate: int = SAMPLE_RATE,
    allow_truncated: bool = False,
) -> NDArray[np.float32]:
    """float32 [n], 16 kHz, mono, from a file (see `load_audio`) or from samples.

    Samples, at `sample_rate` Hz: float16, bfloat16, float32 or float64 in [-1, 1], or int16, int32
    or uint8 PCM. Shapes: [n], [channels, n], or [n, channels] (as soundfile reads): the second
    axis holds the channels if it is at most 8 long and shorter than the first, else the first axis
    does. Channels are averaged. The input is never changed; the result may share its memory.

    Raises AudioError for a shape, dtype or values that are not audio (empty, NaN, infinite), and
    what `load_audio` raises; OptionError for a `sample_rate` below 1 or given beside a file.
    """
    try:
        rate = index(sample_rate)
    except TypeError:
        rate = 0
    if rate < 1:
        raise OptionError(f"sample_rate is {sample_rate!r}: give a whole number of Hz above 0")
    if isinstance(audio, torch.Tensor):
        audio = audio.detach().cpu()
        audio = (audio.float() if audio.dtype == torch.bfloat16 else audio).numpy()
    if not isinstance(audio, np.ndarray):
        if rate != SAMPLE_RATE:
            raise OptionError(f"sample_rate={rate} is for arrays: a file states its own rate")
        return load_audio(audio, allow_truncated=allow_truncated)

    shape = list(audio.shape)
    if audio.size == 0:
        raise AudioError(f"audio array of shape {shape} is empty: give at least one sample")
    if audio.ndim == 2:
        channel_axis = int(shape[1] <= MAX_CHANNELS and shape[1] < shape[0])
    if audio.ndim not in (1, 2) or (audio.ndim == 2 and shape[channel_axis] > MAX_CHANNELS):
        raise AudioError(
            f"audio array has shape {shape}: give [n], [channels, n] or [n, channels] "
            f"with at most {MAX_CHANNELS} channels"
        )
    waveform = _scale(audio)
    if audio.ndim == 2:
        waveform = waveform.mean(axis=channel_axis, dtype=np.float32)
    waveform = resample(np.ascontiguousarray(waveform), rate)
    if waveform.size == 0:
        raise AudioError(f"audio array of {audio.size} samples at {rate} Hz is too short")
    return waveform


def resample(waveform: NDArray[np.float32], source_rate: int) -> NDArray[np.float32]:
    """float32 [n] at `source_rate` Hz -> float32 [n * 16000 / source_rate] at 16 kHz."""
    if source_rate == SAMPLE_RATE:
        return waveform
    function, _ = _torchaudio_resample()
    if function is None:
        return cast(
            NDArray[np.float32],
            soxr.resample(waveform, source_rate, SAMPLE_RATE, quality="HQ"),
        )
    # a copy: from_numpy warns about an array that may not be written
    resampled = function(torch.tensor(waveform), source_rate, SAMPLE_RATE)
    return cast(NDArray[np.float32], resampled.numpy())


def resampler() -> tuple[str, str]:
    """What `resample` uses, "torchaudio" or "soxr", and one line that says why."""
    function, why = _torchaudio_resample()
    return ("soxr" if function is None else "torchaudio"), why


@cache
def _torchaudio_resample() -> tuple[Callable[..., torch.Tensor] | None, str]:
    """torchaudio's resample, or None where it does not import, and why; imported on first use."""
    try:
        import torchaudio
        import torchaudio.functional

        return torchaudio.functional.resample, f"torchaudio {torchaudio.__version__} imports"
    except (ImportError, OSError, RuntimeError) as error:  # its CUDA build beside a CPU torch
        return None, f"torchaudio does not import: {type(error).__name__}: {_one_line(error)}"


def _scale(samples: NDArray[Any]) -> NDArray[np.float32]:
    """PCM or float samples of any shape -> float32 in [-1, 1], same shape."""
    kind, size = samples.dtype.kind, samples.dtype.itemsize
    if (kind, size) in (("i", 2), ("i", 4)):
        return samples.astype(np.float32) / np.float32(2.0 ** (8 * size - 1))
    if (kind, size) == ("u", 1):
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    if kind != "f" or size > 8:
        raise AudioError(
            f"audio array has dtype {samples.dtype}: give float in [-1, 1], int16, int32 or uint8"
        )
    peak = max(abs(float(samples.min())), abs(float(samples.max())))  # NaN stays NaN
    if not np.isfinite(peak):
        raise AudioError("audio array holds NaN or infinite values: give finite samples")
    if peak > 100:  # 40 dB over full scale is no overshoot
        raise AudioError(
            f"audio array reaches {peak:g}: give float in [-1, 1] (16-bit values / 32768)"
        )
    return samples.astype(np.float32, copy=False)


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split())


def _open(source: Source) -> tuple[str, BinaryIO]:
    """A name for messages, and a seekable file at its start that is ours to close; never empty."""
    name = "audio data"
    file: BinaryIO
    try:
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            name = path if path.isprintable() and path else repr(path)
            if not path or "\0" in path:
                raise FileNotFoundError
            file = cast(BinaryIO, Path(path).open("rb"))
            if not file.seekable():  # a named pipe
                with file:
                    file = io.BytesIO(file.read())
        else:
            data = source if isinstance(source, (bytes, bytearray, memoryview)) else source.read()
            if isinstance(data, str):
                raise AudioError(f"{name}: is text; open the file in binary mode ('rb')")
            file = io.BytesIO(data)
    except (OSError, ValueError) as error:  # ValueError: a closed file, undecodable text
        reasons: dict[type[Exception], str] = {
            FileNotFoundError: "no such file; check the path",
            NotADirectoryError: "no such file; check the path",
            IsADirectoryError: "is a folder; give a file in it",
            PermissionError: "permission denied; give this user the right to read it",
        }
        reason = reasons.get(type(error), f"cannot be opened ({_one_line(error)}); check it")
        raise AudioError(f"{name}: {reason}") from error
    if not file.read(1):
        file.close()
        raise AudioError(f"{name}: is empty (0 bytes); copy or record it again")
    file.seek(0)
    return name, file


def _read_plain_wav(file: BinaryIO) -> NDArray[np.int16] | None:
    """int16 [n] of an intact 16-bit 16 kHz mono WAV, many times faster than PyAV; None of others.

    A file of which libsndfile's log has any doubt ("should be") is left to FFmpeg to judge.
    """
    head = file.read(12)
    file.seek(0)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None
    samples = None
    try:
        with soundfile.SoundFile(file) as wav:
            layout = (wav.samplerate, wav.channels, wav.subtype)
            if layout == (SAMPLE_RATE, 1, "PCM_16") and "should be" not in wav.extra_info:
                samples = cast(NDArray[np.int16], wav.read(dtype="int16"))
    except (soundfile.SoundFileError, OSError):
        samples = None
    file.seek(0)
    return samples if samples is not None and samples.size else None


def _decode(name: str, file: BinaryIO, allow_truncated: bool) -> NDArray[np.int16]:
    """int16 [n] through PyAV."""
    # FFmpeg sees this name, not the path: its extension tells formats apart (an mp3 behind a large
    # cover picture), while a path could be a pattern ("%d") or a URL. No protocol is allowed, so
    # that a playlist cannot make FFmpeg open other files.
    suffix = Path(name).suffix.lower()
    if suffix not in AUDIO_SUFFIXES:
        suffix = ".mp3" if file.read(3) == b"ID3" else ""
        file.seek(0)
    reader = SimpleNamespace(name=f"audio{suffix}", read=file.read, seek=file.seek, tell=file.tell)
    try:
        container = av.open(
            reader,
            mode="r",
            options={"protocol_whitelist": "none"},
            metadata_errors="replace",  # tags are often not UTF-8
        )
    except FFMPEG_ERRORS as error:
        raise AudioError(
            f"{name}: not audio or video that FFmpeg can read; convert it, or copy it again"
        ) from error
    with container:
        streams = container.streams.audio
        if not streams:
            raise AudioError(f"{name}: has no audio stream; give a file with sound")
        known = [s for s in streams if s.codec_context is not None]
        if not known:
            raise AudioError(f"{name}: FFmpeg has no decoder for its audio; convert it first")
        stream = max(known, key=lambda s: (bool(s.disposition & Disposition.default), s.channels))
        kind = container.format.name
        promised = _promised_seconds(kind, stream, file)
        length = float((stream.duration or 0) * (stream.time_base or 0))
        run = _Run()
        try:
            pieces = list(_mono(run.frames(container, stream)))
        except FFMPEG_ERRORS as error:
            raise AudioError(f"{name}: cannot be decoded ({_one_line(error)})") from error

    remedy = "copy the file again"
    if run.broken * 2 > run.packets:
        raise AudioError(
            f"{name}: damaged: {run.broken} of {run.packets} packets do not decode; {remedy}"
        )
    if not sum(map(len, pieces)):
        raise AudioError(f"{name}: its audio stream holds no samples; {remedy} or record it again")
    samples = np.concatenate(pieces)
    readable = samples.size / SAMPLE_RATE
    if promised is None:
        truncated = run.cut_off or (kind == "ogg" and _last_ogg_page_is_cut(file))
    else:
        truncated = max(run.end, run.decoded) < promised - SLACK
    if truncated and not allow_truncated:
        of = "" if promised is None else f"of {promised:.1f} "
        raise AudioError(
            f"{name}: truncated: {readable:.1f} {of}s can be read; {remedy}, "
            "or pass allow_truncated (--allow_truncated True) to transcribe what is there"
        )
    if kind in GAPLESS and not truncated and run.decoded < length / 2:
        raise AudioError(f"{name}: damaged: {readable:.1f} of {length:.1f} s decode; {remedy}")
    return samples


class _Run:
    """One pass over a stream, and what went wrong in it."""

    packets = 0
    broken = 0  # packets that do not decode
    cut_off = False  # the container could not be read to its end
    decoded = 0.0  # seconds
    end = 0.0  # seconds on the file's clock, which also counts gaps

    def frames(self, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
        """The frames of every packet that decodes."""
        packets = container.demux(stream)
        packet: Packet[AudioStream] | None
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError:
                self.cut_off, packet = True, None
            try:  # after a demuxer's error the decoder still holds its last frames
                frames = stream.decode(None) if packet is None else packet.decode()
            except av.error.EOFError:  # flushed before
                frames = []
            except av.error.FFmpegError:
                frames = []
                self.broken += 1
            self.packets += packet is not None
            for frame in frames:
                seconds = frame.samples / frame.sample_rate
                start = self.end
                if frame.pts is not None and frame.time_base is not None:
                    start = float(frame.pts * frame.time_base)
                self.end = max(self.end, start + seconds)
                self.decoded += seconds
                yield frame
            if packet is None:
                return


def _mono(frames: Iterator[AudioFrame]) -> Iterator[NDArray[np.int16]]:
    """Frames of any kind -> pieces of int16 [n], 16 kHz; a stream may change its kind midway."""
    graph: Graph | None = None
    kind = None
    for frame in chain(frames, (None,)):
        new_kind = frame and (frame.format.name, frame.layout.name, frame.sample_rate)
        if new_kind != kind:
            if graph is not None:
                yield from _push(graph, None)
            kind, graph = new_kind, (None if frame is None else _converter(frame))
        if graph is not None:
            yield from _push(graph, frame)


def _push(graph: Graph, frame: AudioFrame | None) -> Iterator[NDArray[np.int16]]:
    """What `graph` gives out for one frame, or at the end (None)."""
    graph.push(frame)
    while True:
        try:
            converted = cast(AudioFrame, graph.pull())
        except (av.error.BlockingIOError, av.error.EOFError):  # wants more, or is at its end
            return
        yield cast(NDArray[np.int16], converted.to_ndarray()[0])


def _converter(frame: AudioFrame) -> Graph:
    """A filter graph from frames like this one to 16-bit 16 kHz mono: `av.AudioResampler`'s.

    Added: 16-bit and 8-bit samples are resampled in 16-bit arithmetic, as the ffmpeg program does;
    PyAV's default is float, and 2 to 4 steps off.
    """
    graph = Graph()
    source = graph.add(
        "abuffer",
        sample_rate=str(frame.sample_rate),
        sample_fmt=frame.format.name,
        channel_layout=frame.layout.name,
        time_base=str(frame.time_base or Fraction(1, frame.sample_rate)),
    )
    options = {"internal_sample_fmt": "s16p"} if frame.format.bytes <= 2 else {}
    convert = graph.add("aresample", **options)
    target = graph.add(
        "aformat", sample_fmts="s16", channel_layouts="mono", sample_rates=str(SAMPLE_RATE)
    )
    graph.link_nodes(source, convert, target, graph.add("abuffersink")).configure()
    return graph


def _promised_seconds(kind: str, stream: AudioStream, file: BinaryIO) -> float | None:
    """The audio stream's duration where the file's header states it and it can be trusted."""
    if kind == "matroska,webm":  # the container's duration may be the picture's
        tag = stream.metadata.get("DURATION", "").split(":")  # 00:00:03.378000000
        try:
            return sum(float(part) * unit for part, unit in zip(tag, (3600, 60, 1), strict=True))
        except ValueError:
            return None
    if kind == "wav":
        size = _cut_wav_bytes(file)
        return size * 8 / stream.bit_rate if size and stream.bit_rate else None
    if kind not in TIMED or stream.duration is None or stream.time_base is None:
        return None
    if kind == "mp3" and not _mp3_is_cut(file):
        return None
    return float(stream.duration * stream.time_base)


def _cut_wav_bytes(file: BinaryIO) -> int:
    """The size of the samples by a WAV's header, if the file ends before them; else 0.

    FFmpeg goes by the file's true size.
    """
    here, at = file.tell(), 12
    end = file.seek(0, os.SEEK_END)
    chunk, size = b"", 0
    while chunk != b"data" and at + 8 <= end:
        file.seek(at)
        chunk, size = file.read(4), int.from_bytes(file.read(4), "little")
        at += 8 + size + size % 2
    file.seek(here)
    return size if chunk == b"data" and at - size % 2 > end and size < UNKNOWN_WAV_BYTES else 0


def _mp3_is_cut(file: BinaryIO) -> bool:
    """Whether the file is smaller than its Xing header says; without one there is no telling."""
    here = file.tell()
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3":  # the tag's size: 4 bytes of 7 bits
        start = 10 + sum(
            byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
        )
    file.seek(start)
    block = file.read(4096)
    size = file.seek(0, os.SEEK_END)
    file.seek(here)
    at = max(block.find(b"Xing"), block.find(b"Info"))
    flags = block[at + 7] if 0 <= at < 4000 else 0  # 1: a count of frames, then 2: of bytes
    at += 12 if flags & 1 else 8
    return bool(flags & 2) and size < start + int.from_bytes(block[at : at + 4], "big")


def _last_ogg_page_is_cut(file: BinaryIO) -> bool:
    """Whether the file ends inside an Ogg page (of at most 65,307 bytes)."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 65_307))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
    return len(page) < 27 + len(lengths) + sum(lengths) or not lengths
