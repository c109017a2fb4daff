"""Readers for untrusted model files: JSON, safetensors, and pickled tensors.

Nothing outside the chosen folder is read, nothing except tensors is unpickled, and no archive is
unpacked. Every error is a CheckpointError of one line, with the file and the remedy.
"""

import json
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.errors import CheckpointError

_AGAIN = "copy or download it again"


def expand_user(path: str | PathLike[str]) -> Path:
    """The path, with a home folder for ~. Raises CheckpointError for an unknown user's."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise problem(f"{os.fspath(path)}: {error} Give a path without ~") from error


def inside(folder: Path, name: str) -> Path:
    """The file of this name in a folder, which need not exist.

    Raises CheckpointError if it lies elsewhere: `name` is a path, or a link leads out.
    The hub's cache is the exception, where snapshots/REVISION holds links into blobs beside it.
    """
    path = folder / name
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise problem(
            f"{folder}: {name!r} is no file name in this folder; download the model again"
        )
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append((root.parents[1] / "blobs").resolve())
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise problem(f"{path}: is a link that leads nowhere; {_AGAIN}") from error
    if not any(target.is_relative_to(place) for place in allowed):
        raise problem(f"{path}: is a link out of its folder, to {target}; copy that file here")
    return path


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Whatever fails inside becomes a CheckpointError that names the file, and says what it is:
    empty, a web page, a pointer, or `what`.
    """
    try:
        yield
    except CheckpointError:
        raise
    except PermissionError as error:
        raise problem(f"{file}: permission denied; make the file readable for this user") from error
    except Exception as error:  # damaged files fail inside torch.load in a dozen ways
        raise problem(f"{file}: {_no_content(file) or f'{what}; {_AGAIN}'}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object."""
    with reading(file, "cannot be read as JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise problem(f"{file}: is not a JSON object; copy it again")
    return content


def read_json_of(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in a folder's file; None: there is no such file."""
    file = inside(folder, name)
    return read_json(file) if file.is_file() else None


class Fields:
    """The values of a JSON object from an untrusted file, by name; null is as good as missing."""

    def __init__(self, file: Path, content: Mapping[str, Any]) -> None:
        self.file, self.content = file, content

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value of this kind, or the default. Raises CheckpointError for another kind."""
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise self.wrong(key, f"not of the kind {' or '.join(k.__name__ for k in kinds)}")
        return value

    def whole(self, key: str, low: int, high: int = 1 << 62) -> int | None:
        """A whole number within these limits; None: not given. Raises CheckpointError."""
        value: int | None = self.get(key, int)
        if value is not None and not low <= value <= high:
            raise self.wrong(key, f"not {low} or more" if value < low else f"beyond {high}")
        return value

    def wrong(self, key: str, what: str) -> CheckpointError:
        """The error for a value, such as `what` = "not a list"."""
        value = f"{self.content.get(key)!r}"[:80]
        return problem(f"{self.file}: {key} is {value}, {what}; correct it, or copy the file again")


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """name -> tensor [...], mapped, not read."""
    from safetensors.torch import load_file

    with reading(file, "truncated, damaged or no safetensors file"):
        return load_file(file)


def read_pickle(file: Path) -> Any:
    """What `torch.save` wrote: tensors, mapped where it is a zip archive, in plain containers."""
    with reading(file, "truncated, damaged or no checkpoint"):
        mapped = zipfile.is_zipfile(file)
        if mapped:
            _refuse_packed(file)
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            if "global" not in str(error).lower():  # it names a function that it refuses to call
                raise
            raise problem(
                f"{file}: refused: it holds Python objects, not tensors alone, and could run code; "
                "use a checkpoint from a source that you trust, saved as tensors"
            ) from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """name -> tensor [...] of a .safetensors or a .bin file."""
    if file.suffix == ".safetensors":
        return read_safetensors(file)
    content = read_pickle(file)
    if not isinstance(content, dict):
        raise problem(f"{file}: holds a {type(content).__name__}, no named tensors; {_AGAIN}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise problem(
                f"{file}: {name!s:.200} is no named tensor; save it as a state dictionary"
            )
    return dict(content)


def _refuse_packed(file: Path) -> None:
    """Raise unless the zip archive `file` holds its entries as they are, as PyTorch writes them.

    A packed entry may grow a thousandfold while it is read.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise problem(
            f"{file}: is a compressed archive, which PyTorch does not write and which may unpack "
            "to any size; save it again with torch.save"
        )


def _no_content(file: Path) -> str | None:
    """What a file is that was never a model's, and what to do; None: something else."""
    try:
        with file.open("rb") as data:
            head = data.read(64).lstrip().lower()
    except OSError:
        return None
    if not head:
        return f"is empty; {_AGAIN}"
    if head.startswith(b"version https://git-lfs"):
        return "is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder"
    if head.startswith((b"<!doctype html", b"<html")):
        return "is a web page, not the file itself; download it again, logged in if need be"
    return None
