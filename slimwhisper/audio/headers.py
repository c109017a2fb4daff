"""The length of the audio by a file's header, and whether the file ends before that."""

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from slimwhisper.types import SAMPLE_RATE

if TYPE_CHECKING:  # PyAV is slow to import
    from av.audio.stream import AudioStream

# formats whose header states the duration; for others FFmpeg guesses from bit rate or timestamps
TIMED = {"wav", "flac", "mp3", "aiff", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
PLAIN_WAV = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)  # a format chunk
MAX_CHUNKS = 1000  # of a WAV
UNKNOWN_WAV_BYTES = 0x7FFF_0000  # recorders that write to a pipe state at least this size


def stated_seconds(kind: str, stream: "AudioStream", file: BinaryIO) -> float | None:
    """The audio stream's duration, if the file's header states it reliably."""
    if kind == "matroska,webm":  # the container's duration may be the picture's
        tag = stream.metadata.get("DURATION", "").split(":")  # 00:00:03.378000000
        try:
            return sum(float(part) * unit for part, unit in zip(tag, (3600, 60, 1), strict=True))
        except ValueError:
            return None
    if kind == "wav":
        size = _stated_wav_bytes(file)
        return size * 8 / stream.bit_rate if size and stream.bit_rate else None
    if kind not in TIMED or stream.duration is None or stream.time_base is None:
        return None
    if kind == "mp3" and not _mp3_is_cut(file):
        return None
    return float(stream.duration * stream.time_base)


def _stated_wav_bytes(file: BinaryIO) -> int:
    """The size of the samples according to a WAV's header, if the file ends before them; else 0.

    FFmpeg uses the file's true size.
    """
    position = file.tell()
    size, stated = file.seek(0, os.SEEK_END), 0
    for name, at, length in _wav_chunks(file):
        if name == b"data":
            stated = length if at + length > size and length < UNKNOWN_WAV_BYTES else 0
            break
    file.seek(position)
    return stated


def is_plain_wav(file: BinaryIO) -> bool:
    """Whether `file`, at its start, is a 16-bit 16 kHz mono PCM WAV, by its first format chunk."""
    head = file.read(12)
    plain = False
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        for name, at, _ in _wav_chunks(file):
            if name == b"fmt ":
                file.seek(at)
                plain = file.read(16) == PLAIN_WAV
                break
    file.seek(0)
    return plain


def _wav_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """(name, position of its content, size by its header) of each chunk; moves in `file`."""
    at = 12
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        size = int.from_bytes(head[4:], "little")
        yield head[:4], at + 8, size
        at += 8 + size + size % 2


def _mp3_is_cut(file: BinaryIO) -> bool:
    """Whether the file is smaller than its Xing header says; False without one."""
    position = file.tell()
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
    file.seek(position)
    at = max(block.find(b"Xing"), block.find(b"Info"))
    flags = block[at + 7] if 0 <= at < 4000 else 0  # 1: a count of frames, then 2: of bytes
    at += 12 if flags & 1 else 8
    return bool(flags & 2) and size < start + int.from_bytes(block[at : at + 4], "big")


def last_ogg_page_is_cut(file: BinaryIO) -> bool:
    """Whether the file ends inside an Ogg page (of at most 65,307 bytes)."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 65_307))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
    return len(page) < 27 + len(lengths) + sum(lengths) or not lengths
