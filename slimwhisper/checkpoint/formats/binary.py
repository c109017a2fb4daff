"""Reading the binary files of other projects: numbers and tensors, never beyond the file's end."""

import math
import struct
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import reading


class BinaryFile:
    """A little-endian file, read from its start. Every error is a CheckpointError of one line."""

    def __init__(self, path: Path, kind: str) -> None:
        """kind: what the file is, for messages, such as "ggml file"."""
        self.path, self.kind = path, kind
        with reading(path, "cannot be read"), path.open("rb") as file:
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ)

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._data) - self._data.tell()

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= self.left:
            raise self.damaged(f"{self.left} bytes are left where {count} should follow")
        return self._data.read(count)

    def numbers(self, form: str) -> tuple[Any, ...]:
        """The next numbers, in `struct`'s letters."""
        form = f"<{form}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self, count: int) -> str:
        """The next bytes, as UTF-8."""
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not UTF-8") from error

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next numbers as a tensor [*shape], a copy."""
        count = math.prod(shape)
        data = self.take(count * dtype.itemsize)
        if not count:
            raise self.damaged(f"a tensor has the shape {list(shape)}")
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(shape))

    def damaged(self, what: str) -> Exception:
        """The error of a file that is not what it should be."""
        return problem(f"{self.path}: truncated or damaged {self.kind}: {what}; copy it again")
