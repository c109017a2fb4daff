"""A container's bytes -> frames and silences -> pieces of int16 [n], 16 kHz, mono, with FFmpeg's
libraries (PyAV).
"""

import logging
import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

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

from slimwhisper.audio.samples import ReadOptions, silence
from slimwhisper.audio_formats import headers
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES, CONTAINERS, DECODERS
from slimwhisper.errors import AudioError
from slimwhisper.text import clock, error_line
from slimwhisper.tokens.encoding import whispers_code
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
RAW = {"aac", "ac3", "mp3"}  # formats of frames, which nothing else lies between
SLACK = 0.25  # seconds by which an intact file may differ from its header: codec delay, padding
SOURCE_RATE = 2 * 192_000  # samples of a file for each second that a recording may last
RATES = (1_000, 384_000)  # Hz, of a file
MAX_CHANNELS = 64  # FFmpeg's own limit for PCM
MAX_EDITS = 10_000  # of a track of an MP4; FFmpeg's time for them grows with their square
REMEDY = "copy the file again"
OFFER = ", or pass allow_truncated (--allow_truncated True) to transcribe that part"
FFMPEG_ERRORS = (av.error.FFmpegError, OSError, ValueError)  # Python's two come from file reads
JITTER = 0.1  # seconds by which a frame may be late: clocks are rounded, and decoders have delays
LONGEST_GAP = 3600.0  # seconds of silence at once; a later frame shows a broken clock
BLOCK = 60  # seconds of silence in a piece

logger = logging.getLogger("slimwhisper")


def decode(name: str, file: BinaryIO, how: ReadOptions) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`, which is at its start; [n, channels] if they are not mixed.
    name: for messages, with the suffix.

    Raises AudioError, in some cases only after the last piece: no audio, more than half of it
    damaged, truncated, too long, or without the requested track.
    """
    with _open(name, file) as container:
        stream = choose_stream(name, container, how.audio_track)
        kind = container.format.name
        position = file.tell()
        stated = headers.stated_seconds(kind, stream, file)
        file.seek(position)  # where FFmpeg goes on
        length = float((stream.duration or 0) * (stream.time_base or 0))
        run = FFmpegPass(name)
        samples = 0
        channels, layout = (stream.channels, stream.layout.name) if how.split else (1, "mono")
        known = length if kind in headers.IN_BYTES else 0.0
        _check_header(name, stream, max(stated or 0.0, known), how)
        for piece in run.pieces(container, stream, layout, SAMPLE_RATE):
            _check_source(name, stream, run.source, how)
            samples += len(piece) // channels
            yield piece.reshape(-1, channels) if how.split else piece

    if run.broken * 2 > run.packets:
        what = f"{run.broken} of {run.packets} packets cannot be decoded"
        raise AudioError(f"{name}: damaged: {what}; {REMEDY}")
    if not samples:
        raise AudioError(f"{name}: its audio stream holds no samples; {REMEDY} or record it again")
    if stated is None:
        truncated = run.cut_off or (kind == "ogg" and headers.last_ogg_page_is_cut(file))
    else:
        truncated = max(run.end, run.decoded) < stated - SLACK
    if truncated and not how.allow_truncated:
        part = f"{samples / SAMPLE_RATE:.1f} " + ("" if stated is None else f"of {stated:.1f} ")
        offer = "" if how.allow_truncated is None else OFFER
        raise AudioError(f"{name}: truncated: {part}s can be read; {REMEDY}{offer}")
    if truncated:
        return
    missing = length - run.decoded
    if kind != "flac":  # tags, pages and clocks that jump also make it differ
        unread = file.seek(0, os.SEEK_END) - run.first - run.bytes
        missing = min(missing, run.decoded * unread / max(run.bytes, 1))
    lost = run.decoded * run.broken / (run.packets - run.broken)
    if kind in ("flac", "ogg") or (kind in RAW and missing > run.decoded / 2):
        lost = max(lost, missing)
    if lost > run.decoded and kind in ("flac", "ogg"):
        what = f"only {run.decoded:.1f} of {length:.1f} s can be decoded"
        raise AudioError(f"{name}: damaged: {what}; {REMEDY}")
    if lost > SLACK:
        what = f"some {lost:.1f} of {lost + run.decoded:.1f} s cannot be decoded"
        logger.warning("%s: damaged: %s; %s", name, what, REMEDY)


def decode_as(name: str, file: BinaryIO, layout: str, rate: int) -> NDArray[np.int16]:
    """What can be read of `file`, in FFmpeg's channel layout ("mono", "stereo") and at `rate` Hz:
    int16 [n * channels], the channels in turn. Raises AudioError if that is nothing.
    """
    pieces: list[NDArray[np.int16]] = []
    for part in headers.recordings(name, file):
        with _open(name, part) as container:
            stream = choose_stream(name, container)
            pieces += FFmpegPass(name).pieces(container, stream, layout, rate)
    if not pieces:
        raise AudioError(f"{name}: its audio stream holds no samples; {REMEDY} or record it again")
    return np.concatenate(pieces)


def _check_header(name: str, stream: AudioStream, seconds: float, how: ReadOptions) -> None:
    """Raise AudioError for a stream that cannot be a recording of people, or is too long by its
    header. Warn of one that leaves out its beginning.
    """
    channels, rate = stream.channels, stream.rate
    if rate and not (RATES[0] <= rate <= RATES[1] and 1 <= channels <= MAX_CHANNELS):
        count = channels or "an impossible number of"  # as FFmpeg has it
        what = f"its header states {count} channels at {rate} Hz"
        raise AudioError(f"{name}: {what}, which cannot be read; convert it to 16 kHz mono")
    if seconds > how.seconds:
        raise AudioError(f"{name}: longer than the limit of {how.seconds / 60:g} min")
    _check_source(name, stream, seconds * rate * channels, how)
    head = stream.codec_context.extradata or b""
    skipped = int.from_bytes(head[10:12], "little") / 48_000 if head[:8] == b"OpusHead" else 0.0
    if skipped > SLACK:
        logger.warning("%s: its header leaves out its first %.1f s", name, skipped)


def _check_source(name: str, stream: AudioStream, samples: float, how: ReadOptions) -> None:
    """Raise AudioError if a file has too many samples, of all channels together: at 384 kHz, with 8
    channels, an hour takes minutes to decode.
    """
    if samples > how.seconds * SOURCE_RATE:
        what = f"too long for {stream.channels} channels at {stream.rate} Hz"
        raise AudioError(f"{name}: {what}; convert it to 16 kHz mono, or send a part of it")


def _open(name: str, file: BinaryIO) -> InputContainer:
    """The container, opened with nothing but the short lists of `formats`. Raises AudioError."""
    # FFmpeg gets this name, not the path: its extension tells formats apart (an mp3 after a large
    # cover picture), while a path could be a pattern ("%d") or a URL. No protocol is allowed, so
    # that a playlist cannot make FFmpeg open other files.
    suffix = Path(name).suffix.lower()
    if suffix not in AUDIO_SUFFIXES:
        suffix = ".mp3" if file.read(3) == b"ID3" else ""
        file.seek(0)
    if _edit_entries(file) > MAX_EDITS:
        raise AudioError(f"{name}: has more than {MAX_EDITS:,} edits; convert it to WAV or FLAC")
    reader = SimpleNamespace(name=f"audio{suffix}", read=file.read, seek=file.seek, tell=file.tell)
    try:
        return av.open(reader, mode="r", options=ALLOWED, **TAGS)
    except FFMPEG_ERRORS as error:
        what = "not audio or video that FFmpeg can read"
        raise AudioError(f"{name}: {what}; convert it, or copy it again") from error


def _edit_entries(file: BinaryIO) -> int:
    """The most entries of an edit list in a file, which is left at its start; 0: it has none."""
    spans = [(0, file.seek(0, os.SEEK_END))]
    for kind in (b"moov", b"trak", b"edts", b"elst"):
        spans = [box[1:] for span in spans for box in _boxes(file, *span) if box[0] == kind]
    counts = []
    for start, _ in spans:
        file.seek(start + 4)
        counts.append(int.from_bytes(file.read(4), "big"))
    file.seek(0)
    return max(counts, default=0)


def _boxes(file: BinaryIO, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """The name, and the start and stop of the content, of each box of an MP4 in a stretch."""
    for _ in range(headers.MAX_CHUNKS):
        file.seek(at)
        head = file.read(16)
        size, start = int.from_bytes(head[:4], "big"), at + 8
        if size == 1:
            size, start = int.from_bytes(head[8:], "big"), at + 16
        following = at + size if size else stop
        if at + 8 > stop or following <= at:
            return
        yield head[4:8], start, min(following, stop)
        at = following


def choose_stream(
    name: str, container: InputContainer, track: str | int | None = None
) -> AudioStream:
    """The audio stream that the ffmpeg program would choose; with `track`, a number from 1 or a
    language, among those. A warning names them if there are several, and none was requested.

    Raises AudioError.
    """
    every = container.streams.audio
    wanted = "" if track is None else str(track).strip()
    streams = [s for n, s in enumerate(every, 1) if not wanted or _is_track(s, n, wanted)]
    if len(every) == 1 and not (wanted.isdecimal() or _tag(every[0])):
        streams = [*every]  # it may well be in that language
    if not every:
        raise AudioError(f"{name}: has no audio stream; give a file with sound")
    if not streams:
        raise AudioError(f"{name}: has no audio track {str(track)!r}, only {_tracks(every)}")
    decodable = [s for s in streams if s.codec_context is not None]
    if not decodable:
        raise AudioError(f"{name}: FFmpeg has no decoder for its audio; convert it first")
    allowed = [s for s in decodable if s.codec_context.name in DECODERS]
    if not allowed:
        codec = decodable[0].codec_context.name
        raise AudioError(f"{name}: audio codec {codec!r} is not supported; convert it first")
    chosen = max(allowed, key=lambda s: (bool(s.disposition & Disposition.default), s.channels))
    if not wanted and len(every) > 1:
        tracks = _tracks(every, chosen)
        logger.warning("%s: %s; audio_track chooses another", name, tracks)
    return chosen


def _is_track(stream: AudioStream, number: int, track: str) -> bool:
    """Whether a number or a language stands for a stream."""
    if track.isdecimal():
        return int(track) == number
    tag = _tag(stream)
    return (whispers_code(tag) or tag) == (whispers_code(track) or track)


def _tag(stream: AudioStream) -> str:
    """The language that a file states for a stream; "": none."""
    return stream.language if stream.language not in (None, "und") else ""


def _tracks(streams: Sequence[AudioStream], taken: AudioStream | None = None) -> str:
    """A file's audio streams, such as "2 audio tracks: 1 jpn (taken, default), 2 eng"."""
    rows = []
    for number, stream in enumerate(streams, 1):
        default = bool(stream.disposition & Disposition.default)
        marks = ["taken"] * (stream is taken) + ["default"] * default
        note = f" ({', '.join(marks)})" if marks else ""
        rows.append(f"{number} {_tag(stream)}".strip() + note)
    return f"{len(rows)} audio track{'s' * (len(rows) > 1)}: {', '.join(rows)}"


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

    def pieces(
        self, container: InputContainer, stream: AudioStream, layout: str, rate: int
    ) -> Iterator[NDArray[np.int16]]:
        """Pieces of int16 [n * channels], in FFmpeg's channel layout and at `rate` Hz. Raises
        AudioError.
        """
        try:
            yield from converted(self.frames(container, stream), layout, rate)
        except FFMPEG_ERRORS as error:
            raise AudioError(f"{self._name}: cannot be decoded ({error_line(error)})") from error

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
    frames: Iterator[AudioFrame | float], layout: str, rate: int
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
    steps = [source, graph.add("aresample", **options)]
    count = frame.layout.nb_channels
    if count > 8 and layout != frame.layout.name == f"{count} channels":  # FFmpeg cannot mix them
        mean = "+".join(f"{1 / count}*c{i}" for i in range(count))
        steps.append(graph.add("pan", f"mono|c0={mean}"))
    target = graph.add("aformat", sample_fmts="s16", channel_layouts=layout, sample_rates=str(rate))
    graph.link_nodes(*steps, target, graph.add("abuffersink")).configure()
    return graph
