"""A container's bytes -> pieces of int16 [n], 16 kHz, mono, with FFmpeg's libraries (PyAV)."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

from slimwhisper.audio.formats import AUDIO_SUFFIXES, CONTAINERS, DECODERS
from slimwhisper.audio.headers import last_ogg_page_is_cut, stated_seconds
from slimwhisper.errors import AudioError
from slimwhisper.text import error_line
from slimwhisper.types import SAMPLE_RATE

ALLOWED = {
    "protocol_whitelist": "none",
    "format_whitelist": ",".join(sorted(CONTAINERS)),
    "codec_whitelist": ",".join(sorted(DECODERS)),
}
# tags are often not UTF-8; PyAV 19 accepts them without this
TAGS: dict[str, Any] = (
    {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "replace"}
)
GAPLESS = {"flac", "ogg"}  # decoding much less than the duration is damage, not silence
SLACK = 0.25  # seconds by which an intact file may differ from its header: codec delay, padding
REMEDY = "copy the file again"
FFMPEG_ERRORS = (av.error.FFmpegError, OSError, ValueError)  # Python's two come from file reads


def decode(
    name: str,
    file: BinaryIO,
    allow_truncated: bool,
    max_samples: float = inf,
    split: bool = False,
) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`, which is at its start. name: for messages, with the suffix.

    max_samples: at the file's own rate, of all channels together. split: int16 [n, channels]
    instead, not mixed.

    Raises AudioError, in some cases only after the last piece: no audio, more than half of it
    damaged, truncated without `allow_truncated`, or more than `max_samples`.
    """
    with _open(name, file) as container:
        stream = choose_stream(name, container)
        kind = container.format.name
        stated = stated_seconds(kind, stream, file)
        length = float((stream.duration or 0) * (stream.time_base or 0))
        run = FFmpegPass()
        samples = 0
        channels, layout = (stream.channels, stream.layout.name) if split else (1, "mono")
        try:
            _check_source(name, stream, (stated or 0) * stream.rate * stream.channels, max_samples)
            for piece in converted(run.frames(container, stream), layout):
                _check_source(name, stream, run.source, max_samples)
                samples += len(piece) // channels
                yield piece.reshape(-1, channels) if split else piece
        except FFMPEG_ERRORS as error:
            raise AudioError(f"{name}: cannot be decoded ({error_line(error)})") from error

    if run.broken * 2 > run.packets:
        raise AudioError(
            f"{name}: damaged: {run.broken} of {run.packets} packets cannot be decoded; {REMEDY}"
        )
    if not samples:
        raise AudioError(f"{name}: its audio stream holds no samples; {REMEDY} or record it again")
    readable = samples / SAMPLE_RATE
    if stated is None:
        truncated = run.cut_off or (kind == "ogg" and last_ogg_page_is_cut(file))
    else:
        truncated = max(run.end, run.decoded) < stated - SLACK
    if truncated and not allow_truncated:
        of = "" if stated is None else f"of {stated:.1f} "
        raise AudioError(
            f"{name}: truncated: {readable:.1f} {of}s can be read; {REMEDY}, "
            "or pass allow_truncated (--allow_truncated True) to transcribe that part"
        )
    if kind in GAPLESS and not truncated and run.decoded < length / 2:
        raise AudioError(
            f"{name}: damaged: only {readable:.1f} of {length:.1f} s can be decoded; {REMEDY}"
        )


def decode_as(name: str, file: BinaryIO, layout: str, rate: int) -> NDArray[np.int16]:
    """What can be read of `file`, in FFmpeg's channel layout ("mono", "stereo") and at `rate` Hz:
    int16 [n * channels], the channels in turn. Raises AudioError if that is nothing.
    """
    with _open(name, file) as container:
        stream = choose_stream(name, container)
        try:
            pieces = list(converted(FFmpegPass().frames(container, stream), layout, rate))
        except FFMPEG_ERRORS as error:
            raise AudioError(f"{name}: cannot be decoded ({error_line(error)})") from error
    if not pieces:
        raise AudioError(f"{name}: its audio stream holds no samples; {REMEDY} or record it again")
    return np.concatenate(pieces)


def _check_source(name: str, stream: AudioStream, samples: float, max_samples: float) -> None:
    """Raise AudioError if a file has too many samples: at 655 kHz, with 8 channels, an hour takes
    minutes to decode.
    """
    if samples > max_samples:
        raise AudioError(
            f"{name}: too long for {stream.channels} channels at {stream.rate} Hz; convert it to "
            "16 kHz mono, or send a part of it"
        )


def _open(name: str, file: BinaryIO) -> InputContainer:
    """The container, opened with nothing but the short lists of `formats`. Raises AudioError."""
    # FFmpeg gets this name, not the path: its extension tells formats apart (an mp3 after a large
    # cover picture), while a path could be a pattern ("%d") or a URL. No protocol is allowed, so
    # that a playlist cannot make FFmpeg open other files.
    suffix = Path(name).suffix.lower()
    if suffix not in AUDIO_SUFFIXES:
        suffix = ".mp3" if file.read(3) == b"ID3" else ""
        file.seek(0)
    reader = SimpleNamespace(name=f"audio{suffix}", read=file.read, seek=file.seek, tell=file.tell)
    try:
        return av.open(reader, mode="r", options=ALLOWED, **TAGS)
    except FFMPEG_ERRORS as error:
        raise AudioError(
            f"{name}: not audio or video that FFmpeg can read; convert it, or copy it again"
        ) from error


def choose_stream(name: str, container: InputContainer) -> AudioStream:
    """The audio stream that the ffmpeg program would choose. Raises AudioError."""
    streams = container.streams.audio
    if not streams:
        raise AudioError(f"{name}: has no audio stream; give a file with sound")
    decodable = [s for s in streams if s.codec_context is not None]
    if not decodable:
        raise AudioError(f"{name}: FFmpeg has no decoder for its audio; convert it first")
    allowed = [s for s in decodable if s.codec_context.name in DECODERS]
    if not allowed:
        codec = decodable[0].codec_context.name
        raise AudioError(f"{name}: audio codec {codec!r} is not supported; convert it first")
    return max(allowed, key=lambda s: (bool(s.disposition & Disposition.default), s.channels))


class FFmpegPass:
    """One pass over a stream, and its errors."""

    packets = 0
    broken = 0  # packets that do not decode
    cut_off = False  # the container could not be read to its end
    decoded = 0.0  # seconds
    source = 0  # samples at the file's rate, of all channels together
    end = 0.0  # seconds on the file's clock, which includes gaps

    def frames(self, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
        """The frames of every packet that decodes."""
        packets = container.demux(stream)
        packet: Packet[AudioStream] | None
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError:
                self.cut_off, packet = True, None
            try:  # after a demuxer error the decoder still holds its last frames
                frames = stream.decode(None) if packet is None else packet.decode()
            except av.error.EOFError:  # already flushed
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
                self.source += frame.samples * frame.layout.nb_channels
                yield frame
            if packet is None:
                return


def converted(
    frames: Iterator[AudioFrame], layout: str = "mono", rate: int = SAMPLE_RATE
) -> Iterator[NDArray[np.int16]]:
    """Frames of any format -> pieces of int16 [n * channels]; the format may change midway."""
    graph: Graph | None = None
    kind = None
    for frame in chain(frames, (None,)):
        new_kind = frame and (frame.format.name, frame.layout.name, frame.sample_rate)
        if new_kind != kind:
            if graph is not None:
                yield from _filtered(graph, None)
            kind, graph = new_kind, (None if frame is None else _converter(frame, layout, rate))
        if graph is not None:
            yield from _filtered(graph, frame)


def _filtered(graph: Graph, frame: AudioFrame | None) -> Iterator[NDArray[np.int16]]:
    """The output of `graph` for one frame, or for the end (None): pieces of int16 [n]."""
    graph.push(frame)
    while True:
        try:
            converted = cast(AudioFrame, graph.pull())
        except (av.error.BlockingIOError, av.error.EOFError):  # needs more input, or is at its end
            return
        yield cast(NDArray[np.int16], converted.to_ndarray()[0])


def _converter(frame: AudioFrame, layout: str, rate: int) -> Graph:
    """A filter graph from frames like this one to 16-bit ones, as in `av.AudioResampler`.

    Unlike there, 16-bit and 8-bit samples are resampled in 16-bit arithmetic, as in the ffmpeg
    program; PyAV's default is float, which differs by 2 to 4 steps.
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
    target = graph.add("aformat", sample_fmts="s16", channel_layouts=layout, sample_rates=str(rate))
    graph.link_nodes(source, convert, target, graph.add("abuffersink")).configure()
    return graph
