"""Standard input, the argument `-`: a recording, or a list of paths, by its first bytes."""

import codecs
import os
from collections.abc import Iterator
from typing import BinaryIO

from slimwhisper.errors import AudioError
from slimwhisper.jobs.members import HeldFile
from slimwhisper.text import error_line, text_encoding

NAME = "stdin"  # of the recording and its outputs
ENOUGH = 64  # bytes that tell audio from text, if there is no whole line
BLOCK = 1 << 16  # bytes that are read at a time, at most


class StandardInput:
    """What is piped in; it can be read once."""

    def __init__(self, stream: BinaryIO) -> None:
        """Waits for the first bytes. Raises AudioError."""
        # read1 returns what has arrived, without waiting for a full block
        self._receive = getattr(stream, "read1", stream.read)
        self._head = head = b""
        while len(head) < ENOUGH and (b"\n" not in head or head[:4] == b"RIFF"):
            if not (data := self.read()):
                break
            head += data
        self._encoding = text_encoding(head)
        if self._encoding is None and b"\0\0" not in head:  # a sound has several in a row
            self._encoding = text_encoding(head.replace(b"\0", b"\n"))  # `find -print0`
        self.is_list = self._encoding is not None and not head.startswith(b"#!AMR")
        self._head = head

    def read(self, size: int = BLOCK) -> bytes:
        """The first bytes, or the next ones that have arrived, up to `size`; empty at the end.
        Raises AudioError.
        """
        head, self._head = self._head, b""
        try:
            return head or self._receive(size)
        except OSError as error:
            problem = f"cannot be read ({error_line(error)}); give the file's name"
            raise AudioError(f"{NAME}: {problem}") from error

    def recording(self) -> HeldFile:
        """The recording, which is copied to the folder TMPDIR. Raises AudioError."""
        return HeldFile(NAME, self, 0, wait=False)

    def paths(self) -> Iterator[str]:
        """The paths of a list, as they arrive: one per line, or NUL-separated."""
        encoding = str(self._encoding)
        decoder = codecs.getincrementaldecoder(encoding)("replace") if "16" in encoding else None
        self._head = self._head.removeprefix(codecs.BOM_UTF8)
        separator = remainder = b""
        while data := self.read():
            remainder += os.fsencode(decoder.decode(data)) if decoder else data
            if not separator:
                separator = b"\0" if b"\0" in remainder else b"\n" if b"\n" in remainder else b""
            if separator:
                *paths, remainder = remainder.split(separator)
                yield from filter(None, map(_path_text, paths))
        if last := _path_text(remainder):
            yield last


def _path_text(path: bytes) -> str:
    return os.fsdecode(path.removesuffix(b"\r"))
