"""The file that `slimwhisper calibrate` writes and `--cache FILE` loads: settings and rotations.

A safetensors file. Its metadata, all strings, has exactly these keys: `format` and `version`;
`checkpoint`, the digest of the weights it was made for (`slimwhisper.digests.weights_digest`);
`cross` and `self`, the two specs; `measured`, JSON. Its tensors are what forms have learned, in
float32: `cross.0.NAME` of one layer.

Files are not trusted: sizes are bounded, names and shapes checked, and nothing is unpickled. An
invalid file raises `CacheError`, one line.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.atomic import atomic_write
from slimwhisper.errors import CacheError, OutputError
from slimwhisper.text import error_line, escape_line

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor

    Learned = Mapping[str, Tensor]  # by layer and name, such as "cross.0.rotation"

FORMAT, VERSION, SUFFIX = "slimwhisper-cache", "1", ".safetensors"
KEYS = ("format", "version", "checkpoint", "cross", "self", "measured")
MAX_MEASURED = 1 << 20  # characters
MAX_FILE = 4 << 30  # bytes
MAX_SPEC, MAX_QUOTED = 300, 60  # characters
DIMENSIONS = 4  # of a tensor
NAME = re.compile(r"(?:cross|self)\.(0|[1-9]\d{0,2})\.[A-Za-z_]\w{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a file, and the shapes of its tensors. The specs are not checked yet."""

    path: Path
    checkpoint: str  # digest
    cross: str
    self_: str
    measured: Any  # JSON


def looks_like_file(cache: str) -> bool:
    """Whether this is the path of a file, and not a preset's name."""
    return cache.endswith(SUFFIX) or Path(cache).is_file()


def read_header(path: str | os.PathLike[str]) -> Header:
    """A file's header, checked. Raises CacheError."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE:
            raise _not_a_cache_file(path)
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}
            kinds = {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except OSError as error:
        raise CacheError(
            f"{escape_line(path)}: cannot be read ({error_line(error)}); give a file from "
            "slimwhisper calibrate"
        ) from error
    except SafetensorError as error:
        raise _not_a_cache_file(path) from error
    if metadata.get("format") != FORMAT:
        raise _not_a_cache_file(path)
    if metadata.get("version") != VERSION:
        version = str(metadata.get("version"))[:MAX_QUOTED]
        raise _invalid(path, f"has version {version!r}, and this program reads {VERSION!r}")
    for key in sorted({*metadata, *KEYS}):
        if key not in KEYS or key not in metadata:
            problem = "unknown" if key not in KEYS else "missing"
            raise _invalid(path, f"{problem} entry {key[:MAX_QUOTED]!r}")
        if len(metadata[key]) > (MAX_MEASURED if key == "measured" else MAX_SPEC):
            raise _invalid(path, f"{key} is too long")
    try:
        measured = json.loads(metadata["measured"])
    except (ValueError, RecursionError) as error:
        raise _invalid(path, "measured is not JSON") from error
    for name, (dtype, shape) in kinds.items():
        _layer(path, name)
        if dtype != "F32":
            raise _invalid(path, f"tensor {name!r} is not float32")
        if len(shape) > DIMENSIONS or not 0 < math.prod(shape):
            raise _invalid(
                path, f"tensor {name!r} is empty, or has more than {DIMENSIONS} dimensions"
            )
    return Header(path, metadata["checkpoint"], metadata["cross"], metadata["self"], measured)


def read_learned(header: Header, checkpoint: str, layers: int) -> "Learned":
    """A file's tensors, in float64. checkpoint: the digest of the one in use;
    layers: its decoder layers. Raises CacheError, also if the file is for another checkpoint.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = header.path
    if header.checkpoint != checkpoint:
        raise CacheError(
            f"{escape_line(path.name)}: was made for a checkpoint with digest "
            f"{header.checkpoint[:MAX_QUOTED]!r}, but this one has {checkpoint!r}; run slimwhisper "
            "calibrate for this checkpoint, or choose a preset"
        )
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise _invalid(path, f"cannot be read ({error_line(error)})") from error
    for name, tensor in sorted(tensors.items()):
        if _layer(path, name) >= layers:
            raise _invalid(path, f"has {name!r}, and the model has {layers} decoder layers")
        if not bool(torch.isfinite(tensor).all()):
            raise _invalid(path, f"{name!r} holds NaN or infinity")
    return {name: tensor.double() for name, tensor in tensors.items()}


def as_stored(learned: "Learned") -> "Learned":
    """The tensors as a file returns them: rounded to float32, in float64."""
    return {name: tensor.float().double() for name, tensor in learned.items()}


def write_file(
    path: Path, checkpoint: str, forms: tuple[str, str], learned: "Learned", measured: Any
) -> None:
    """Write a file, complete or not at all. forms: the canonical specs of cross and self; for the
    others see `read_learned` and `Header`. Raises OutputError.
    """
    from safetensors.torch import save

    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "checkpoint": checkpoint,
        "cross": forms[0],
        "self": forms[1],
        "measured": json.dumps(measured, sort_keys=True),
    }
    tensors = {name: tensor.float().clone().contiguous() for name, tensor in learned.items()}
    try:
        with atomic_write(path) as file:
            file.write(save(tensors, metadata))
    except OSError as error:
        raise OutputError(
            f"{escape_line(path)}: cannot be written ({error_line(error)}); choose another -o"
        ) from error


def _layer(path: Path, name: str) -> int:
    """ "cross.0.rotation" -> 0. Raises CacheError for another name."""
    parts = NAME.fullmatch(name)
    if parts is None:
        raise _invalid(path, f"unknown tensor {escape_line(name)[:MAX_QUOTED]!r}")
    return int(parts[1])


def _invalid(path: Path, reason: str) -> CacheError:
    return CacheError(
        f"{escape_line(path.name)}: {escape_line(reason)}; run slimwhisper calibrate again"
    )


def _not_a_cache_file(path: Path) -> CacheError:
    return CacheError(
        f"{escape_line(path.name)}: not a file from slimwhisper calibrate, or damaged; give such a "
        "file, or a preset's name"
    )
