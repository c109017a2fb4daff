"""A container's audio stream -> frames and silences -> pieces of int16 [n], with FFmpeg (PyAV)."""

import logging
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from math import inf
from typing import Any, cast

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

from slimwhisper.audio.headers import silence
from slimwhisper.errors import AudioError
from slimwhisper.text import clock
from slimwhisper.types import SAMPLE_RATE

JITTER = 0.1  # seconds by which a frame may be late: clocks are rounded, and decoders have delays
LONGEST_GAP = 3600.0  # seconds of silence at once; a later frame shows a broken clock
BLOCK = 60  # seconds of silence in a piece

logger = logging.getLogger("slimwhisper")


class FFmpegPass:
    """One pass over a stream, and its errors.

    Times are the file's clock, from the start of its first stream on: where the sound begins later,
    or has gaps, there is silence. Nothing is left out where frames overlap.
    """

    packets = 0
    broken = 0  # packets that do not decode
    cut_off = False  # the container could not be read to its end
    decoded = 0.0  # seconds
    bytes = 0  # of the packets that decode
    first = 0  # position of the first one
    source = 0  # samples at the file's rate, of all channels together
    position = 0.0  # seconds so far, with silences
    end = 0.0  # seconds on the file's clock

    def __init__(self, name: str, longest_gap: float = LONGEST_GAP) -> None:
        """name: for messages. longest_gap: seconds; a longer one is not filled."""
        self._name, self._longest_gap = name, longest_gap
        self._origin = inf  # seconds on the file's clock; until there is sound, of the pictures,
        # for which FFmpeg may not tell it, as it has no decoder

    def frames(
        self, container: InputContainer, stream: AudioStream
    ) -> Iterator[AudioFrame | float]:
        """The frames of every packet that decodes, and the seconds of silence before them. Raises
        AudioError for samples that are not numbers.
        """
        is_float = stream.codec_context.name.startswith("pcm_f")
        films = (s for s in container.streams.video if not s.disposition & Disposition.attached_pic)
        packets = container.demux([stream, *films])
        packet: Packet[Any] | None
        frames: list[AudioFrame]
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError:
                self.cut_off, packet = True, None
            if packet is not None and packet.stream.index != stream.index:
                if not self.decoded and packet.pts is not None and packet.time_base is not None:
                    self._origin = min(self._origin, float(packet.pts * packet.time_base))
                continue
            try:  # after a demuxer error the decoder still holds its last frames
                frames = stream.decode(None) if packet is None else cast(Any, packet.decode())
            except av.error.EOFError:  # already flushed
                frames = []
            except av.error.FFmpegError:
                frames = []
                self.broken += packet is not None and packet.size > 0
            if packet is not None and packet.size:  # not the last one, which is empty
                self.first = self.first or packet.pos or 0
                self.packets += 1
                self.bytes += packet.size if frames else 0
            for frame in frames:
                if is_float and not np.isfinite(frame.to_ndarray()).all():
                    what = "holds samples that are NaN or infinite"
                    raise AudioError(f"{self._name}: {what}; convert or record it again")
                seconds = frame.samples / frame.sample_rate
                start = None
                if frame.pts is not None and frame.time_base is not None:
                    start = float(frame.pts * frame.time_base)
                    if gap := self._gap(container, start):
                        yield gap
                        self.position += gap
                self.end = max(self.end, (self.end if start is None else start) + seconds)
                self.decoded += seconds
                self.position += seconds
                self.source += frame.samples * frame.layout.nb_channels
                yield frame
            if packet is None:
                return

    def _gap(self, container: InputContainer, start: float) -> float:
        """The seconds of silence before a frame that starts at `start` on the file's clock."""
        if not self.decoded:
            first = start if container.start_time is None else container.start_time / av.time_base
            self._origin = max(min(first, self._origin), 0.0)  # what precedes 0 is not played
        gap = start - self._origin - self.position
        if gap <= JITTER:
            return 0.0
        stated = inf if container.duration is None else container.duration / av.time_base
        if gap > self._longest_gap or self.position < stated < self.position + gap - 1:
            self._origin += gap
            jump = f"its clock jumps from {clock(self.position)} to {clock(self.position + gap)}"
            logger.warning("%s: %s; this gap is left out of the times", self._name, jump)
            return 0.0
        return gap


def converted(
    frames: Iterator[AudioFrame | float], layout: str = "mono", rate: int = SAMPLE_RATE
) -> Iterator[NDArray[np.int16]]:
    """Frames of any format, and seconds of silence -> pieces of int16 [n * channels]. The format
    may change midway.
    """
    graph: Graph | None = None
    kind = None
    for item in chain(frames, (None,)):
        frame = item if isinstance(item, AudioFrame) else None
        new_kind = frame and (frame.format.name, frame.layout.name, frame.sample_rate)
        if new_kind != kind:
            if graph is not None:
                yield from _filtered(graph, None)
            kind, graph = new_kind, (None if frame is None else _converter(frame, layout, rate))
        if graph is not None:
            yield from _filtered(graph, frame)
        elif isinstance(item, float):
            channels, count = AudioLayout(layout).nb_channels, round(item * rate)
            for start in range(0, count, BLOCK * rate):
                yield silence(min(BLOCK * rate, count - start) * channels)


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
