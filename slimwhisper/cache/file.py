"""The file that `slimwhisper calibrate` writes and `--cache FILE` loads: settings and rotations.

A safetensors file. Its metadata, all strings, has exactly these keys: `format` and `version`;
`checkpoint`, the digest of the weights it was made for (`slimwhisper.digests.weights_digest`);
`cross` and `self`, the two specs; `measured`, JSON. Its tensors are what forms have learned, in
float32: `cross.0.NAME` of one layer.

A file may come from anyone: sizes are bounded, names and shapes checked, and nothing is unpickled.
What is wrong with it is one line, a `CacheError`.
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
from slimwhisper.text import one_line, shown

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor

    Learned = Mapping[str, Mapping[str, Tensor]]  # by site, such as "cross.0"; then by name

FORMAT, VERSION, SUFFIX = "slimwhisper-cache", "1", ".safetensors"
KEYS = ("format", "version", "checkpoint", "cross", "self", "measured")
MAX_MEASURED = 1 << 20  # characters
MAX_FILE = 4 << 30  # bytes
MAX_SPEC, MAX_SHOWN = 300, 60  # characters
DIMENSIONS = 4  # of a tensor
NAME = re.compile(r"((?:cross|self)\.(0|[1-9]\d{0,2}))\.([A-Za-z_]\w{0,63})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says besides its tensors. The specs are not checked yet."""

    path: Path
    checkpoint: str  # digest
    cross: str
    self_: str
    measured: Any  # JSON
    shapes: Mapping[str, tuple[int, ...]]  # of its tensors, by name


def looks_like_file(cache: str) -> bool:
    """Whether this is a file, or should be one, and no preset."""
    return cache.endswith(SUFFIX) or Path(cache).is_file()


def read_header(path: str | os.PathLike[str]) -> Header:
    """A file's header, checked. Raises CacheError."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE:
            raise _no_file(path)
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}
            kinds = {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except OSError as error:
        raise CacheError(
            f"{shown(path)}: cannot be read ({one_line(error)}); give a file that slimwhisper "
            "calibrate wrote"
        ) from error
    except SafetensorError as error:
        raise _no_file(path) from error
    if metadata.get("format") != FORMAT:
        raise _no_file(path)
    if metadata.get("version") != VERSION:
        version = str(metadata.get("version"))[:MAX_SHOWN]
        raise _wrong(path, f"has version {version!r}, and this program reads {VERSION!r}")
    for key in sorted({*metadata, *KEYS}):
        if key not in KEYS or key not in metadata:
            verb = "has an unknown entry" if key not in KEYS else "lacks the text"
            raise _wrong(path, f"{verb} {key[:MAX_SHOWN]!r}")
        if len(metadata[key]) > (MAX_MEASURED if key == "measured" else MAX_SPEC):
            raise _wrong(path, f"its {key} is too long")
    try:
        measured = json.loads(metadata["measured"])
    except (ValueError, RecursionError) as error:
        raise _wrong(path, "its measurements are no JSON") from error
    for name, (dtype, shape) in kinds.items():
        _parts(path, name)
        if dtype != "F32":
            raise _wrong(path, f"tensor {name!r} is not float32")
        if len(shape) > DIMENSIONS or not 0 < math.prod(shape):
            raise _wrong(path, f"tensor {name!r} has no shape of up to {DIMENSIONS} dimensions")
    checkpoint, cross, self_ = (metadata[key] for key in ("checkpoint", "cross", "self"))
    shapes = {name: shape for name, (_, shape) in kinds.items()}
    return Header(path, checkpoint, cross, self_, measured, shapes)


def read_learned(header: Header, checkpoint: str, layers: int) -> "Learned":
    """A file's tensors by site and name, in float64; for a checkpoint of this digest, with so many
    decoder layers. Raises CacheError, also for another checkpoint.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = header.path
    if header.checkpoint != checkpoint:
        raise CacheError(
            f"{shown(path.name)}: was made for a checkpoint with digest "
            f"{header.checkpoint[:MAX_SHOWN]!r}, not for this one, {checkpoint!r}; run slimwhisper "
            "calibrate for this one, or choose a preset"
        )
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise _wrong(path, f"cannot be read ({one_line(error)})") from error
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != header.shapes:
        raise _wrong(path, "has changed while it was read")
    learned: dict[str, dict[str, Tensor]] = {}
    for full, tensor in sorted(tensors.items()):
        site, layer, name = _parts(path, full)
        if layer >= layers:
            raise _wrong(path, f"has {full!r}, and the model has {layers} decoder layers")
        if not bool(torch.isfinite(tensor).all()):
            raise _wrong(path, f"{full!r} holds NaN or infinity")
        learned.setdefault(site, {})[name] = tensor.double()
    return learned


def as_stored(learned: "Learned") -> "Learned":
    """What a file gives back: rounded to float32, in float64."""
    return {
        site: {name: t.float().double() for name, t in tensors.items()}
        for site, tensors in learned.items()
    }


def write_file(
    path: Path, checkpoint: str, forms: tuple[str, str], learned: "Learned", measured: Any
) -> None:
    """Write a file, complete or not at all. `forms` are the canonical specs of cross and self;
    the others as `read_learned` and `Header` have them. Raises OutputError.
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
    tensors = {
        f"{site}.{name}": tensor.float().clone().contiguous()
        for site, named in learned.items()
        for name, tensor in named.items()
    }
    try:
        with atomic_write(path) as file:
            file.write(save(tensors, metadata))
    except OSError as error:
        raise OutputError(
            f"{shown(path)}: cannot be written ({one_line(error)}); choose another -o"
        ) from error


def _parts(path: Path, name: str) -> tuple[str, int, str]:
    """ "cross.0.rotation" -> ("cross.0", 0, "rotation")."""
    found = NAME.fullmatch(name)
    if found is None:
        raise _wrong(path, f"has an unknown tensor {shown(name)[:MAX_SHOWN]!r}")
    return found[1], int(found[2]), found[3]


def _wrong(path: Path, what: str) -> CacheError:
    return CacheError(f"{shown(path.name)}: {shown(what)}; run slimwhisper calibrate again")


def _no_file(path: Path) -> CacheError:
    return CacheError(
        f"{shown(path.name)}: is no file that slimwhisper calibrate wrote, or it is damaged; give "
        "such a file, or a preset's name"
    )
