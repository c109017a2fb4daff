"""Reads numbers and tensors from binary files, never beyond the file's end."""

import math
import struct
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import load_error, reading

OTHER_TABLE = "its vocabulary is not OpenAI's; use the Hugging Face folder that it was made from"


class BinaryFile:
    """A little-endian file, read from its start. Every error is a CheckpointError of one line."""

    def __init__(self, path: Path, kind: str) -> None:
        """kind: what the file is, for messages, such as "ggml file"."""
        self.path, self.kind = path, kind
        with reading(path, "cannot be read"), path.open("rb") as file:
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ)

    @property
    def remaining(self) -> int:
        """Bytes that have not been read yet."""
        return len(self._data) - self._data.tell()

    def read(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= self.remaining:
            raise self.damaged(f"{count} bytes expected, {self.remaining} remain")
        return self._data.read(count)

    def numbers(self, form: str) -> tuple[Any, ...]:
        """The next numbers, in `struct`'s letters."""
        form = f"<{form}"
        return struct.unpack(form, self.read(struct.calcsize(form)))

    def text(self, count: int) -> str:
        """The next bytes, as UTF-8."""
        try:
            return self.read(count).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not UTF-8") from error

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next numbers as a tensor [*shape], a copy."""
        count = math.prod(shape)
        data = self.read(count * dtype.itemsize)
        if not count:
            raise self.damaged(f"a tensor has shape {list(shape)}")
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(shape))

    def damaged(self, what: str) -> Exception:
        """The error for a file with damaged content."""
        return load_error(f"{self.path}: truncated or damaged {self.kind}: {what}; copy it again")
