"""Reading the binary files of other projects: numbers and tensors, never beyond the file's end."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import reading


class BinaryFile:
    """A little-endian file, read from its start. Every error is a CheckpointError of one line."""

    def __init__(self, path: Path, kind: str) -> None:
        """kind: what the file is, for messages, such as "ggml file"."""
        self.path, self.kind = path, kind

    def __enter__(self) -> Self:
        with reading(self.path, "cannot be read"):
            self._file = self.path.open("rb")
        self.left = self.path.stat().st_size  # bytes that are not read yet
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= self.left:
            raise self.damaged(f"{self.left} bytes are left where {count} should follow")
        found = self._file.read(count)
        self.left -= count
        return found

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
