"""Readers for untrusted model files: JSON, safetensors, pickled tensors, and other binary files.

They read nothing outside the chosen folder, unpickle nothing except tensors, and decompress no
archive. Every error is a CheckpointError of one line, with the file and the remedy.
"""

import json
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.errors import CheckpointError
from slimwhisper.text import escape_line
from slimwhisper.types import Dims


def load_error(text: str) -> CheckpointError:
    """A CheckpointError with this text, escaped: it may quote names from untrusted files."""
    line = escape_line(text)
    return CheckpointError(line if len(line) < 700 else f"{line[:450]} ... {line[-200:]}")


_AGAIN = "copy or download it again"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a reader found in a checkpoint. Nothing of it is checked yet.

    Attributes:
        dims: The dimensions of the model.
        state: The tensors by OpenAI's names. Matrices have the shape [out, in].
        settings: The settings for decoding that are in a file, as in generation_config.json.
        folder: The Hugging Face folder, if it is one.
    """

    dims: Dims
    state: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def expand_user(path: str | PathLike[str]) -> Path:
    """The path, with a home folder for ~. Raises CheckpointError for an unknown user's."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise load_error(f"{os.fspath(path)}: {error} Give a path without ~.") from error


def inside(folder: Path, name: str) -> Path:
    """The file of this name in a folder, which need not exist.

    Raises CheckpointError if it lies elsewhere: `name` is a path, or a link leads out.
    Exception: in the hub's cache, snapshots/REVISION contains links into ../../blobs.
    """
    path = folder / name
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise load_error(f"{folder}: {name!r} is not the name of a file in this folder; {_AGAIN}")
    resolved = folder.resolve()
    allowed = [resolved]
    if resolved.parent.name == "snapshots":
        allowed.append((resolved.parents[1] / "blobs").resolve())
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise load_error(f"{path}: broken link; {_AGAIN}") from error
    if not any(target.is_relative_to(root) for root in allowed):
        raise load_error(f"{path}: links outside its folder, to {target}; copy that file here")
    return path


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Turns any exception inside into a CheckpointError that names the file and what is wrong: it
    is empty, a web page or a git-lfs pointer, or else `what`.
    """
    try:
        yield
    except CheckpointError:
        raise
    except PermissionError as error:
        raise load_error(f"{file}: permission denied; make it readable for this user") from error
    except Exception as error:  # damaged files fail inside torch.load in a dozen ways
        reason = _placeholder_reason(file) or f"{what}; {_AGAIN}"
        raise load_error(f"{file}: {reason}") from error


def head_of(file: Path) -> bytes:
    """The first bytes of a file, enough to recognise a format; none of what cannot be read."""
    with suppress(OSError):  # the reader of its kind says why
        if file.is_file():
            with file.open("rb") as data:
                return data.read(128)
    return b""


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object."""
    with reading(file, "cannot be read as JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise load_error(f"{file}: is not a JSON object; copy it again")
    return content


def read_json_of(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in a folder's file; None: there is no such file."""
    file = inside(folder, name)
    return read_json(file) if file.is_file() else None


class JSONFields:
    """The values of a JSON object from an untrusted file, by name; null counts as missing."""

    def __init__(self, file: Path, content: Mapping[str, Any] | None = None) -> None:
        """content: None: the file's, which is read."""
        self.file, self.content = file, read_json(file) if content is None else content

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value of this kind, or the default. Raises CheckpointError for another kind."""
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise self.invalid(key, f"not of type {' or '.join(k.__name__ for k in kinds)}")
        return value

    def whole(self, key: str, low: int, high: int = 1 << 62) -> int | None:
        """A whole number within these limits; None: not given. Raises CheckpointError."""
        value: int | None = self.get(key, int)
        if value is not None and not low <= value <= high:
            raise self.invalid(key, f"less than {low}" if value < low else f"more than {high}")
        return value

    def invalid(self, key: str, what: str) -> CheckpointError:
        """The error for a value, such as `what` = "not a list"."""
        value = f"{self.content.get(key)!r}"[:80]
        return load_error(f"{self.file}: {key} is {value}, {what}; correct it, or copy it again")


def read_pickle(file: Path) -> Any:
    """The object that `torch.save` wrote: tensors, mapped if the file is a zip archive, in plain
    containers.
    """
    with reading(file, "truncated, damaged or not a checkpoint"):
        mapped = zipfile.is_zipfile(file)
        if mapped:
            _refuse_compressed(file)
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            if "global" not in str(error).lower():  # names a function that may not be called
                raise
            what = "objects other than tensors, which could run code; use one that has only tensors"
            raise load_error(f"{file}: refused: it contains {what}") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """name -> tensor [...] of a .safetensors, which is mapped, or a .bin file."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        with reading(file, "truncated, damaged or not a safetensors file"):
            return load_file(file)
    content = read_pickle(file)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise load_error(f"{file}: contains a {kind}, not named tensors; {_AGAIN}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise load_error(f"{file}: {name!s:.200} is not a named tensor; save the state_dict")
    return dict(content)


def _refuse_compressed(file: Path) -> None:
    """Raise unless the zip archive `file` is uncompressed, as PyTorch writes them.

    A compressed entry may grow a thousandfold while it is read.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > file.stat().st_size:
        reason = "compressed archives can expand to any size; save it again with torch.save"
        raise load_error(f"{file}: refused: {reason}")


def _placeholder_reason(file: Path) -> str | None:
    """Why a file has no model in it, and what to do: it is empty, a git-lfs pointer or a web page.
    None: it is none of these.
    """
    head = head_of(file).lstrip().lower()
    if file.is_file() and not head:
        return f"is empty; {_AGAIN}"
    if head.startswith(b"version https://git-lfs"):
        return "is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder"
    if head.startswith((b"<!doctype html", b"<html")):
        return "is a web page, not the file itself; download it again, logged in if necessary"
    return None


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
