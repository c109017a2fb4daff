"""Files of a model that nobody vouches for: JSON, safetensors, and pickled tensors.

Nothing outside the chosen folder is read, nothing except tensors is unpickled, and no archive is
unpacked. Every error is a CheckpointError of one line, with the file and the remedy.
"""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.errors import CheckpointError

_AGAIN = "copy or download it again"


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


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise _denied(file) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = _no_content(file) or "cannot be read as JSON; copy it again"
        raise problem(f"{file}: {reason}") from error
    if not isinstance(content, dict):
        raise problem(f"{file}: is not a JSON object; copy it again")
    return content


def read_json_of(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in a folder's file; None: there is no such file."""
    file = inside(folder, name)
    return read_json(file) if file.is_file() else None


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """name -> tensor [...], mapped, not read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except PermissionError as error:
        raise _denied(file) from error
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        reason = _no_content(file) or f"truncated, damaged or no safetensors file; {_AGAIN}"
        raise problem(f"{file}: {reason}") from error


def read_pickle(file: Path) -> Any:
    """What `torch.save` wrote: tensors, mapped where it is a zip archive, in plain containers."""
    try:
        mapped = zipfile.is_zipfile(file)
        if mapped:
            _refuse_packed(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():  # it names a function that it refuses to call
            raise problem(
                f"{file}: refused: it holds Python objects, not tensors alone, and could run code; "
                "use a checkpoint from a source that you trust, saved as tensors"
            ) from error
        reason = _no_content(file) or "damaged or no checkpoint; copy it again"
        raise problem(f"{file}: {reason}") from error
    except PermissionError as error:
        raise _denied(file) from error
    except Exception as error:  # damaged files fail inside torch.load in a dozen ways
        reason = _no_content(file) or f"truncated, damaged or no checkpoint; {_AGAIN}"
        raise problem(f"{file}: {reason}") from error


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


def _denied(file: Path) -> CheckpointError:
    return problem(f"{file}: permission denied; give this user the right")
