"""What headers state: where samples are, their length, and whether the file ends before that."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from slimwhisper.audio.samples import PLAIN_WAV

if TYPE_CHECKING:  # it is slow to import
    from av.audio.stream import AudioStream

# formats whose header states the duration; for others FFmpeg guesses from bit rate or timestamps
TIMED = {"flac", "mp3", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
IN_BYTES = {"wav", "aiff", "au", "caf", "w64"}  # formats whose header states the samples' bytes
MAX_CHUNKS = 10_000  # of a file, or of a box of an MP4
# recorders that write to a pipe state at least these sizes: SoX 0x7F00_0000 of AIFF, rounded down
UNKNOWN = {4: 0x7EFF_0000, 8: 1 << 62}
FEW = 4096  # bytes that may be missing, or follow the samples, without a word

logger = logging.getLogger("slimwhisper")


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of file with its samples in one chunk, whose size is stated."""

    chunks: int  # position of the first chunk
    name: int  # bytes of a chunk's name
    width: int  # bytes of its size
    order: Literal["little", "big"]
    samples: bytes  # the name of the chunk with the samples
    before: int = 0  # bytes of that chunk before them
    align: int = 2  # a chunk begins at a multiple of it
    inclusive: bool = False  # a size includes the chunk's name and size

    def chunk(self, file: BinaryIO, at: int) -> tuple[bytes, int, int]:
        """The start of a chunk's name, and the start and stop of its content. Raises EOFError."""
        file.seek(at)
        head = file.read(self.name + self.width)
        if len(head) < self.name + self.width:
            raise EOFError
        size = int.from_bytes(head[self.name :], self.order) - self.inclusive * len(head)
        return head[: min(4, self.name)], at + len(head), at + len(head) + max(size, 0)


_WAV = _Form(12, 4, 4, "little", b"data")
_FORMS = {
    **dict.fromkeys((b"RIFF", b"RF64", b"BW64"), _WAV),
    b"RIFX": replace(_WAV, order="big"),
    b"FORM": _Form(12, 4, 4, "big", b"SSND", before=8),  # AIFF
    b"caff": _Form(8, 4, 8, "big", b"data", before=4, align=1),
    b"riff": _Form(40, 16, 8, "little", b"data", align=8, inclusive=True),  # W64
    b".snd": _Form(8, 0, 4, "big", b"", align=1),  # AU: a chunk without a name
}


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of a recording, as its header states them."""

    form: _Form
    origin: int  # position of the recording
    start: int  # of the samples
    size: int | None  # bytes; None: not known
    field: int  # position of the size
    width: int  # bytes of it
    block: int  # bytes that are decoded together, such as a sample of all channels
    plain: bool  # 16 bits, 16 kHz, one channel


def _find_samples(file: BinaryIO, origin: int = 0) -> _Samples | None:
    """Those of the recording at `origin`; None: it is of another kind."""
    file.seek(origin)
    head = file.read(12)
    form = _FORMS.get(head[:4])
    if form is None or (form.chunks == 12 and head[8:] not in (b"WAVE", b"AIFF", b"AIFC")):
        return None
    at, block, plain = origin + form.chunks, 1, False
    long: tuple[int, int] | None = None  # of RF64: position and value of the size
    for _ in range(MAX_CHUNKS):
        try:
            name, start, stop = form.chunk(file, at)
        except EOFError:
            return None
        if name == form.samples:
            field, width, size = start - form.width, form.width, stop - start - form.before
            if long is not None and size == 0xFFFF_FFFF:
                (field, size), width = long, 8
            start += form.before
            if not name:
                start = origin + int.from_bytes(head[4:8], "big")
            known = size if 0 < size < UNKNOWN[width] else None
            return _Samples(form, origin, start, known, field, width, max(block, 1), plain)
        content = file.read(24).ljust(24, b"\0")
        match name:
            case b"fmt ":
                plain = form is _WAV and content[:16] == PLAIN_WAV
                block = int.from_bytes(content[12:14], form.order)
            case b"COMM":
                block = content[1] * (content[7] + 7 >> 3)  # channels, and bits
            case b"desc":
                block = int.from_bytes(content[16:20], "big")
            case b"ds64":
                long = start + 8, int.from_bytes(content[8:16], "little")
        at = stop + (origin - stop) % form.align
    return None


def is_chunk(name: bytes) -> bool:
    """Whether these bytes may be the name of a chunk; samples seldom are."""
    return name.isascii() and name.decode().isprintable() and name != b""


def recordings(name: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """The recordings in a file, one after the other, as `cat` leaves them; usually one, the file.

    Where a header states fewer samples than there are, the file is read as if it stated the right
    size, with a warning. One that states more was cut: it stays as it is.
    """
    size, origin = file.seek(0, os.SEEK_END), 0
    while True:
        stop, part = size, file
        if (found := _find_samples(file, origin)) is not None:
            patches: dict[int, bytes] = {}
            if (following := _next_recording(file, found, size)) is None:
                patches = _right_sizes(name, found, size)
            stop = following or size
            if patches or (origin, stop) != (0, size):
                part = cast(BinaryIO, _View(file, origin, stop, patches))
        if stop < size:
            logger.warning("%s: another recording follows in the same file; it is read, too", name)
        part.seek(0)
        yield part
        if stop == size:
            return
        origin = stop


def _next_recording(file: BinaryIO, samples: _Samples, size: int) -> int | None:
    """Where the next recording in a file of `size` bytes begins, or `size`; None: the samples do
    not end where their header states.
    """
    if samples.size is None or samples.start + samples.size > size:
        return None
    at = samples.start + samples.size
    while at < size:
        at += (samples.origin - at) % samples.form.align
        if _find_samples(file, at) is not None:
            return at
        if size - at <= FEW:
            break
        name, _, stop = samples.form.chunk(file, at)
        if stop > size or not is_chunk(name):
            return None
        at = stop
    return size


def _right_sizes(name: str, samples: _Samples, size: int) -> dict[int, bytes]:
    """What to write in the header, by position, so that all samples of a file of `size` bytes are
    read; {}: it was cut.
    """
    form, there = samples.form, size - samples.start
    if samples.size is not None:
        if samples.size > there + FEW or (samples.size > there and there % samples.block):
            return {}
        if there - samples.size > FEW:
            what = f"its header states {samples.size:,} bytes of samples, but there are {there:,}"
            logger.warning("%s: %s; these are read", name, what)
    size_of_chunk = there + form.before + form.inclusive * (form.name + form.width)
    patches = {samples.field: _encoded(size_of_chunk, samples.width, form.order)}
    if form.chunks == 12:  # the size of all chunks, which FFmpeg reads of AIFF
        patches[samples.origin + 4] = _encoded(size - samples.origin - 8, 4, form.order)
    return patches


def _encoded(size: int, width: int, order: Literal["little", "big"]) -> bytes:
    """A size; the largest one, which means "to the end", where it does not fit."""
    return min(size, (1 << 8 * width) - 1).to_bytes(width, order)


class _View:
    """Bytes of another file from `start` to `stop`, with others at some positions of that file."""

    def __init__(self, file: BinaryIO, start: int, stop: int, patches: dict[int, bytes]) -> None:
        self._file, self._start, self._stop, self._patches = file, start, stop, patches
        self._at = start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {0: self._start, 1: self._at, 2: self._stop}[whence]
        return self.tell()

    def tell(self) -> int:
        return self._at - self._start

    def read(self, count: int = -1) -> bytes:
        left = max(self._stop - self._at, 0)
        self._file.seek(self._at)
        data = bytearray(self._file.read(left if count < 0 else min(count, left)))
        for position, value in self._patches.items():
            for i, byte in enumerate(value, position - self._at):
                if 0 <= i < len(data):
                    data[i] = byte
        self._at += len(data)
        return bytes(data)


def plain_samples(file: BinaryIO) -> tuple[int, int] | None:
    """Start and stop of the samples of a 16-bit 16 kHz mono WAV that has all that it states; None:
    `file` is another one. It stays at its start.
    """
    found, size = _find_samples(file), file.seek(0, os.SEEK_END)
    file.seek(0)
    if found is None or not found.plain:
        return None
    stop = size if found.size is None else found.start + found.size
    return (found.start, stop) if found.start < stop <= size else None


def stated_seconds(kind: str, stream: "AudioStream", file: BinaryIO) -> float | None:
    """Where the audio stream ends, on the file's clock, if the file's header states it reliably.
    The file stays anywhere.
    """
    if kind == "matroska,webm":  # the container's duration may be the picture's
        tag = stream.metadata.get("DURATION", "").split(":")  # 00:00:03.378000000
        try:
            return sum(float(part) * unit for part, unit in zip(tag, (3600, 60, 1), strict=True))
        except ValueError:
            return None
    if kind in IN_BYTES:
        found, there = _find_samples(file), file.seek(0, os.SEEK_END)
        if found is None or found.size is None or found.start + found.size <= there:
            return None
        return found.size * 8 / stream.bit_rate if stream.bit_rate else None
    if kind not in TIMED or stream.duration is None or stream.time_base is None:
        return None
    if kind == "mp3" and not _mp3_is_cut(file):
        return None
    return float((max(stream.start_time or 0, 0) + stream.duration) * stream.time_base)


def _mp3_is_cut(file: BinaryIO) -> bool:
    """Whether the file is smaller than its Xing header says; False without one."""
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3":  # the tag's size: 4 bytes of 7 bits
        shifts = zip(head[6:], (21, 14, 7, 0), strict=True)
        start = 10 + sum(byte << shift for byte, shift in shifts)
    file.seek(start)
    block = file.read(4096)
    size = file.seek(0, os.SEEK_END)
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
