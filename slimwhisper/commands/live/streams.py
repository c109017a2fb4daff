"""Streams: a pipe or an address -> pieces of float32 [n], 16 kHz, mono, as they arrive."""

import logging
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import av
import numpy as np
from av.container import InputContainer
from av.stream import Discard
from numpy.typing import NDArray

from slimwhisper.audio_formats.ffmpeg import (
    ALLOWED,
    FFMPEG_ERRORS,
    LONGEST_GAP,
    TAGS,
    FFmpegPass,
    choose_stream,
)
from slimwhisper.audio_formats.headers import UNKNOWN, is_chunk
from slimwhisper.audio_formats.names import ADDRESSES, CONTAINERS, LIVE_CONTAINERS, PROTOCOLS
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.text import error_line, text_encoding
from slimwhisper.types import SAMPLE_RATE

MAX_CHANNELS = 64  # FFmpeg's own limit for PCM
RATES = (4_000, 384_000)  # Hz, of PCM
# FFmpeg's names of PCM by a WAV's format code and bits
PCM = {(1, 8): "u8", (1, 16): "s16le", (1, 24): "s24le", (1, 32): "s32le"}
PCM |= {(3, 32): "f32le", (3, 64): "f64le", (6, 8): "alaw", (7, 8): "mulaw"}
WAVS = (b"RIFF", b"RF64", b"BW64")
EXTENSIBLE = 0xFFFE  # the format code is in the chunk's extension
MAX_CHUNK = 1 << 20  # bytes of a WAV before its samples
LONGEST_LIVE_GAP = 10.0  # seconds of silence; a longer one is a new clock, as in ffmpeg
TIMEOUT = (15.0, 15.0)  # seconds without an answer, when opening and when reading
# the first bytes of containers; anything else, but for text, is raw PCM
CONTAINER_STARTS = (
    *(b"fLaC", b"OggS", b"ID3", b"\x1aE\xdf\xa3", b"FORM", b".snd", b"caff", b"wvpk", b"#!AMR"),
    *(b"0&\xb2u", b"FLV\x01", b"\x00\x00\x01\xba", b"riff.", b"RIFX"),
)
# a frame of MP3, MP2 or AAC as radio sends it; all begin alike, but for a bit of padding
FRAME = re.compile(rb"\xff[\xe2\xe3\xf0-\xf5\xf8-\xfd].", re.DOTALL)
PACKET = 188  # bytes, of a transport stream; each begins with "G"
NO_PROBING = {"probesize": "32", "analyzeduration": "1"}  # for PCM

logger = logging.getLogger("slimwhisper")


@dataclass(frozen=True, slots=True)
class PCMFormat:
    """The format of raw samples in a stream."""

    kind: str  # FFmpeg's name
    rate: int  # Hz
    channels: int
    frame: int  # bytes of a sample of all channels
    bytes: int | None = None  # of all samples; None: not known


def pipe_pieces(
    file: int, name: str, rate: int = SAMPLE_RATE, channels: int = 1
) -> Iterator[NDArray[np.float32]]:
    """Audio from a pipe, such as a microphone's recorder: pieces of float32 [n].

    Arguments:
        file: its descriptor; it is left open.
        name: for messages.
        rate, channels: of raw PCM, signed 16-bit little-endian, in Hz; a container states its own.
            WAV and other containers are recognised by their first bytes.
    Raises:
        OptionError for an invalid rate or number of channels; AudioError for a pipe that is empty
        or ends too early, after all of its pieces.
    """
    if not RATES[0] <= rate <= RATES[1]:
        raise OptionError(f"--rate {rate}: give Hz from {RATES[0]} to {RATES[1]}, such as 16000")
    if not 1 <= channels <= MAX_CHANNELS:
        raise OptionError(f"--channels {channels}: give 1 to {MAX_CHANNELS}")
    return _recordings(_Pipe(file), name, PCMFormat("s16le", rate, channels, 2 * channels))


def _recordings(pipe: "_Pipe", name: str, raw: PCMFormat) -> Iterator[NDArray[np.float32]]:
    yield from _recording(pipe, name, raw)
    while pipe.peek(4) in WAVS:  # as `cat` leaves them
        yield from _recording(pipe, name, raw)


def _recording(pipe: "_Pipe", name: str, raw: PCMFormat) -> Iterator[NDArray[np.float32]]:
    head = pipe.peek(PACKET + 1)
    if not head:
        raise AudioError(f"{name}: is empty; pipe audio into it, such as arecord's")
    packets = head[:1] == b"G" == head[PACKET:]
    alike = (head[:2] + bytes([head[2] ^ bit]) for bit in (0, 2))
    frames = FRAME.match(head) and sum(map(pipe.peek(4096).count, alike)) > 1
    is_container = head.startswith(CONTAINER_STARTS) or packets or frames or head[4:8] == b"ftyp"
    is_wav = head[:4] in WAVS
    if not (is_container or is_wav) and b"\n" in head and text_encoding(head) is not None:
        raise AudioError(f"{name}: is text; pipe audio into it, such as arecord's")
    pcm, kind, options = None, None, dict(ALLOWED)
    if not is_container:
        pcm = _wav(pipe, name) if is_wav else raw
        kind = pcm.kind
        layout = {"sample_rate": str(pcm.rate), "ch_layout": f"{pcm.channels} channels"}
        options |= NO_PROBING | layout | {"format_whitelist": pcm.kind}
    try:
        container = av.open(pipe, format=kind, mode="r", options=options, **TAGS)
    except FFMPEG_ERRORS as error:
        what = "not audio that can be read from a pipe"
        raise AudioError(f"{name}: {what}; send WAV, or raw 16-bit PCM") from error
    with container:
        yield from _pieces(name, container)
    if pcm is None:
        return
    if pipe.bytes % pcm.frame:
        what = f"ends in the middle of a sample ({pipe.bytes} bytes, {pcm.frame} per sample)"
        raise AudioError(f"{name}: {what}; check its source, and --channels")
    if pcm.bytes is not None and pipe.bytes < pcm.bytes:
        missing = (pcm.bytes - pipe.bytes) / pcm.frame / pcm.rate
        logger.warning("%s: ends %.2f s before its header says; check its source", name, missing)


def _wav(pipe: "_Pipe", name: str) -> PCMFormat:
    """The format in a WAV's header; the pipe is then at its samples. Raises AudioError."""
    pipe.remaining = None
    pipe.exactly(12)
    pcm: PCMFormat | None = None
    while len(head := pipe.exactly(8)) == 8:
        kind, size = struct.unpack("<4sI", head)
        if kind == b"data" and pcm is not None:
            length = size if 0 < size < UNKNOWN[4] else None
            pipe.bytes, pipe.remaining = 0, length
            return replace(pcm, bytes=length)
        if size > MAX_CHUNK or len(chunk := pipe.exactly(size + size % 2)) < size:
            break
        if kind == b"fmt " and size >= 16:
            code, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", chunk)
            if code == EXTENSIBLE and size >= 26:
                (code,) = struct.unpack_from("<H", chunk, 24)
            valid = (code, bits) in PCM and frame == channels * bits // 8
            if not (valid and RATES[0] <= rate <= RATES[1] and 1 <= channels <= MAX_CHANNELS):
                raise AudioError(f"{name}: this kind of WAV is not supported; send 16-bit PCM")
            pcm = PCMFormat(PCM[code, bits], rate, channels, frame)
    raise AudioError(f"{name}: a WAV with a damaged header; check its source")


def url_pieces(url: str, name: str) -> Iterator[NDArray[np.float32]]:
    """What comes from an address: pieces of float32 [n]. `name` stands for it in messages.

    HTTP, ICY, HLS, RTSP, RTP and MPEG-TS over UDP, with FFmpeg's libraries, which may use only
    the protocols, containers and decoders of `formats`: a playlist cannot open files.

    Raises OptionError for another kind of address; AudioError where nothing answers, nothing can be
    read, or the connection ends too early, after all that came.
    """
    if url.partition("://")[0].lower() not in ADDRESSES:
        kinds = ", ".join(f"{kind}://" for kind in ADDRESSES)
        raise OptionError(f"{name}: unknown kind of address; {kinds} and paths work")
    return _url_pieces(url, name)


def _url_pieces(url: str, name: str) -> Iterator[NDArray[np.float32]]:
    options = ALLOWED | {
        "protocol_whitelist": ",".join(sorted(PROTOCOLS)),
        "format_whitelist": ",".join(sorted(CONTAINERS | LIVE_CONTAINERS)),
        "rtsp_flags": "prefer_tcp",
    }
    try:
        container = av.open(url, mode="r", options=options, timeout=TIMEOUT, **TAGS)
    except FFMPEG_ERRORS as error:
        what = f"cannot be opened ({error_line(error)})"
        raise AudioError(f"{name}: {what}; check the address") from error
    with container:
        yield from _pieces(name, container, endless=container.duration is None)


def _pieces(
    name: str, container: InputContainer, endless: bool = False
) -> Iterator[NDArray[np.float32]]:
    """All audio of a container. endless: it should not end. Raises AudioError for an early end."""
    stream = choose_stream(name, container)
    for other in container.streams:
        if other is not stream and container.format.name == "hls":  # do not fetch other qualities
            other.discard = Discard.all
    run, samples = FFmpegPass(name, LONGEST_LIVE_GAP if endless else LONGEST_GAP), 0
    for piece in run.pieces(container, stream, "mono", SAMPLE_RATE):
        samples += len(piece)
        yield np.multiply(piece, np.float32(1 / 32768), dtype=np.float32)
    if run.cut_off and not (samples or endless):  # such as an MP4 with its index at its end
        raise AudioError(f"{name}: this kind of file cannot be read as it comes; give its name")
    if run.cut_off or endless:
        what = f"ended, or the connection was lost, after {samples / SAMPLE_RATE:.1f} s"
        raise AudioError(f"{name}: {what}; start the command again to continue")
    if not samples:
        raise AudioError(f"{name}: has no samples; check its source")


class _Pipe:
    """A pipe as a file for FFmpeg: a read returns the available bytes without waiting for more.

    It reads the descriptor, as a thread that waits in Python's own reader would block the exit.
    """

    name = "audio"

    def __init__(self, file: int) -> None:
        self.bytes = 0  # read so far
        self.remaining: int | None = None  # to read; None: all
        self._file, self._head = file, b""

    def peek(self, count: int) -> bytes:
        """The first bytes; fewer if there are no more."""
        while len(self._head) < count and (more := os.read(self._file, count - len(self._head))):
            self._head += more
        return self._head

    def exactly(self, count: int) -> bytes:
        """The next bytes; fewer if there are no more."""
        parts = b""
        while len(parts) < count and (more := self.read(count - len(parts))):
            parts += more
        return parts

    def read(self, count: int) -> bytes:
        """Some of the next bytes; none at the end."""
        if self.remaining == 0 and len(head := self.peek(4)) == 4 and not is_chunk(head):
            logger.warning("the header states less audio than comes through the pipe; all is read")
            self.remaining = None
        if self.remaining is not None:
            count = min(count, self.remaining)
        if self._head:
            data, self._head = self._head[:count], self._head[count:]
        else:
            data = os.read(self._file, count) if count else b""
        if self.remaining is not None:
            self.remaining -= len(data)
        self.bytes += len(data)
        return data
