"""The file that `slimwhisper calibrate` writes and `--cache FILE` loads: settings and rotations.

A safetensors file. Its metadata, all strings, has exactly these keys: `format` and `version`;
`checkpoint`, the digest of the weights it was made for (`slimwhisper.disk.weights_digest`);
`cross` and `self`, the two specs; `measured`, JSON. Its tensors are what forms have learned, in
float32: `cross.0.NAME` of one layer.

Files are not trusted: sizes are bounded, names and types checked, tensors folded on trial, and
nothing is unpickled. An invalid file raises `CacheError`, one line.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from slimwhisper.cache.fold import blocks_of, fold
from slimwhisper.cache.forms import Form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.disk import atomic_write, weights_digest
from slimwhisper.errors import CacheError
from slimwhisper.files import output_errors
from slimwhisper.text import error_line, escape_line

FORMAT, VERSION = "slimwhisper-cache", "1"
PARTS = ("cross", "self")
KEYS = ("format", "version", "checkpoint", *PARTS, "measured")
MAX_MEASURED = 1 << 20  # characters
MAX_FILE = 4 << 30  # bytes
MAX_SPEC, MAX_QUOTED = 300, 60  # characters
# what folding raises for tensors that do not fit the form
FOLDING_ERRORS = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a file. The specs are not checked yet."""

    path: Path
    checkpoint: str  # digest
    cross: str
    self_: str
    measured: Any  # JSON


def read_header(path: str | os.PathLike[str]) -> Header:
    """A file's header, checked. Raises CacheError."""
    path = Path(path)
    try:
        size = path.stat().st_size
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
    except OSError as error:
        what = f"cannot be read ({error_line(error)}); give a file from slimwhisper calibrate"
        raise CacheError(f"{escape_line(path)}: {what}") from error
    except SafetensorError as error:
        raise _not_a_cache_file(path) from error
    if size > MAX_FILE or metadata.get("format") != FORMAT:
        raise _not_a_cache_file(path)
    if metadata.get("version") != VERSION:
        version = str(metadata.get("version"))[:MAX_QUOTED]
        raise _invalid(path, f"has version {version!r}, and this program reads {VERSION!r}")
    for key in sorted(metadata.keys() ^ set(KEYS)):
        problem = "unknown" if key in metadata else "missing"
        raise _invalid(path, f"{problem} entry {key[:MAX_QUOTED]!r}")
    for key in KEYS:
        if len(metadata[key]) > (MAX_MEASURED if key == "measured" else MAX_SPEC):
            raise _invalid(path, f"{key} is too long")
    try:
        measured = json.loads(metadata["measured"])
    except (ValueError, RecursionError) as error:
        raise _invalid(path, "measured is not JSON") from error
    return Header(path, metadata["checkpoint"], metadata["cross"], metadata["self"], measured)


def read_forms(
    path: str | os.PathLike[str], forms: tuple[Form, Form], checkpoint: Checkpoint
) -> tuple[Form, Form]:
    """A file's forms for cross- and self-attention, with what they have learned, in float64.

    forms: as the file's header has them. Raises CacheError, also if the file is for another
    checkpoint, or its tensors do not fit the forms.
    """
    header, digest = read_header(path), weights_digest(checkpoint.state)
    path = header.path
    if header.checkpoint != digest:
        made_for = f"was made for a checkpoint with digest {header.checkpoint[:MAX_QUOTED]!r}"
        what = f"{made_for}, but this one has {digest!r}"
        remedy = "run slimwhisper calibrate for this checkpoint, or choose a preset"
        raise CacheError(f"{escape_line(path.name)}: {what}; {remedy}")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise _invalid(path, f"cannot be read ({error_line(error)})") from error
    layers = range(checkpoint.dims.n_text_layer)
    pairs = list(zip(PARTS, forms, strict=True))
    expected = {f"{part}.{i}.{name}" for part, f in pairs for i in layers for name in f.tensors}
    for name in sorted(tensors.keys() ^ expected):
        problem = "unknown" if name in tensors else "missing"
        raise _invalid(path, f"{problem} tensor {escape_line(name)[:MAX_QUOTED]!r}")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not bool(torch.isfinite(tensor).all()):
            raise _invalid(path, f"{name!r} is not float32, or holds NaN or infinity")
    result = []
    for part, form in pairs:
        found = [{n: tensors[f"{part}.{i}.{n}"].double() for n in form.tensors} for i in layers]
        result.append(replace(form, learned=found) if form.tensors else form)
        blocks = blocks_of(checkpoint.state, checkpoint.dims, part) if form.tensors else []
        try:
            for block, context in blocks:
                fold(block, result[-1], context)
        except FOLDING_ERRORS as error:
            reason = error_line(error, kind=True)
            raise _invalid(path, f"its tensors do not fit {form} ({reason})") from error
    return result[0], result[1]


def as_stored(form: Form) -> Form:
    """A form with what a file would return: tensors rounded to float32, in float64."""
    rounded = [{n: t.float().double() for n, t in own.items()} for own in form.learned or ()]
    return replace(form, learned=rounded)


def write_file(path: Path, checkpoint: str, forms: Sequence[Form], measured: Any) -> None:
    """Write a file, complete or not at all. checkpoint: its digest; forms: cross and self, with
    what they have learned; measured: see `Header`. Raises OutputError.
    """
    metadata = {"format": FORMAT, "version": VERSION, "checkpoint": checkpoint}
    metadata |= dict(zip(PARTS, map(str, forms), strict=True))
    metadata["measured"] = json.dumps(measured, sort_keys=True)
    tensors = {
        f"{part}.{layer}.{name}": tensor.float().clone().contiguous()
        for part, form in zip(PARTS, forms, strict=True)
        for layer, learned in enumerate(form.learned or ())
        for name, tensor in learned.items()
    }
    written = output_errors(f"{escape_line(path)}: cannot be written", "-o")
    with written, atomic_write(path) as file:
        file.write(save(tensors, metadata))


def _invalid(path: Path, reason: str) -> CacheError:
    what = f"{escape_line(path.name)}: {escape_line(reason)}"
    return CacheError(f"{what}; run slimwhisper calibrate again")


def _not_a_cache_file(path: Path) -> CacheError:
    what = "not a file from slimwhisper calibrate, or damaged"
    return CacheError(f"{escape_line(path.name)}: {what}; give such a file, or a preset's name")
