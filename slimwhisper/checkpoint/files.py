"""Readers for untrusted model files: JSON, safetensors and pickled tensors; and the check that
their tensors are those of a complete Whisper model, with finite weights.

They read nothing outside the chosen folder, unpickle nothing except tensors, and decompress no
archive. Every error is a CheckpointError of one line, with the file and the remedy.
"""

import json
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.errors import CheckpointError, memory_errors
from slimwhisper.text import escape_line
from slimwhisper.types import DTYPES, Dims


def load_error(text: str) -> CheckpointError:
    """A CheckpointError with this text, escaped: it may quote names from untrusted files."""
    line = escape_line(text)
    return CheckpointError(line if len(line) < 700 else f"{line[:450]} ... {line[-200:]}")


_AGAIN = "copy or download it again"
NO_MEMORY = "not enough memory to read it; free some, or choose a smaller model"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a reader found in a checkpoint. `read_checkpoint` checks the tensors.

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
        with memory_errors(CheckpointError, f"{file}: {NO_MEMORY}"):
            yield
    except CheckpointError:
        raise
    except PermissionError as error:
        raise load_error(f"{file}: permission denied; make it readable for this user") from error
    except Exception as error:  # damaged files fail inside torch.load in a dozen ways
        reason = no_model(file) or f"{what}; {_AGAIN}"
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
        content = json.loads(file.read_text(encoding="utf-8-sig"))
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

        # opened first: safetensors says of a file that may not be read that it does not exist
        with reading(file, "truncated, damaged or not a safetensors file"), file.open("rb"):
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
        reason = "compressed archives can expand to any size; unpack it, or save it with torch.save"
        raise load_error(f"{file}: refused: {reason}")


def no_model(file: Path) -> str | None:
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


EMBEDDING = "decoder.token_embedding.weight"  # [V, d], also for the logits, unless there is
OUTPUT = "proj_out.weight"  # [V, d]
TEXTS = range(8, 4097)  # tokens of a text's context; Whisper's has 448


def expected_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Every tensor that a Whisper model must have and its shape, [out, in] for matrices."""
    shapes: dict[str, tuple[int, ...]] = {}

    def affine(name: str, *shape: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    def block(name: str, d: int, cross: bool) -> None:
        for attention in ("attn", "cross_attn") if cross else ("attn",):
            for part in ("query", "key", "value", "out"):
                affine(f"{name}.{attention}.{part}", d, d, bias=part != "key")
            affine(f"{name}.{attention}_ln", d)
        affine(f"{name}.mlp.0", 4 * d, d)
        affine(f"{name}.mlp.2", d, 4 * d)
        affine(f"{name}.mlp_ln", d)

    d = dims.n_audio_state
    affine("encoder.conv1", d, dims.n_mels, 3)
    affine("encoder.conv2", d, d, 3)
    shapes["encoder.positional_embedding"] = (dims.n_audio_ctx, d)
    for i in range(dims.n_audio_layer):
        block(f"encoder.blocks.{i}", d, cross=False)
    affine("encoder.ln_post", d)

    d = dims.n_text_state
    shapes[EMBEDDING] = (dims.n_vocab, d)
    shapes["decoder.positional_embedding"] = (dims.n_text_ctx, d)
    for i in range(dims.n_text_layer):
        block(f"decoder.blocks.{i}", d, cross=True)
    affine("decoder.ln", d)
    return shapes


def validate(name: str, dims: Dims, state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless `state` has the tensors of `expected_shapes`, all finite.

    state: OpenAI's name -> tensor, matrices [out, in].
    """
    if min(astuple(dims)) < 1:
        raise load_error(f"{name}: invalid dimensions {list(astuple(dims))}; copy it again")
    mels, audio, text, width = dims.n_mels, dims.n_audio_ctx, dims.n_text_ctx, dims.n_text_state
    problems = {
        f"{mels} mel bands are not Whisper's 80 or 128": mels not in (80, 128),
        f"{audio} audio positions are more than 1500, the last timestamp's": audio > 1500,
        f"{text} text positions are not {TEXTS.start} to {TEXTS[-1]}": text not in TEXTS,
        f"the widths {dims.n_audio_state} and {width} differ": dims.n_audio_state != width,
        f"{width} is not divisible by {dims.n_audio_head} heads": width % dims.n_audio_head,
        f"{width} is not divisible by {dims.n_text_head} heads": width % dims.n_text_head,
    }
    if wrong := next((reason for reason, holds in problems.items() if holds), None):
        raise load_error(f"{name}: {wrong}; it cannot be run as Whisper")

    layers = dims.n_audio_layer + dims.n_text_layer
    if layers > len(state):  # checked first: memory must not grow with a number from the file
        what = f"{len(state)} tensors are too few for {layers} layers"
        raise load_error(f"{name}: {what}; copy it again")
    expected = expected_shapes(dims)
    keys = [n.removesuffix("weight") for n in expected if n.endswith(".key.weight")]
    optional = {f"{key}bias": expected[f"{key}weight"][:1] for key in keys}  # dropped by folding
    optional[OUTPUT] = expected[EMBEDDING]
    shapes = expected | optional
    missing = [n for n in expected if n not in state]
    extra = [n for n in state if n not in shapes]
    kinds = (("is missing", missing), ("has unknown", extra))
    if what := ", ".join(f"{k} tensor {n[0]!s:.200} ({len(n)} in all)" for k, n in kinds if n):
        counts = f"{dims.n_audio_layer} encoder and {dims.n_text_layer} decoder layers"
        raise load_error(f"{name}: {what}; give a model with {counts}, merged and not quantised")
    for key, tensor in state.items():
        shape = shapes[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            has = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            what = f"tensor {key} has shape {has}, but its dimensions require {list(shape)}"
            raise load_error(f"{name}: {what}; it is not a complete Whisper model")
        check_numbers(name, key, tensor)


def check_numbers(name: str, key: str, tensor: Tensor) -> None:
    """Raise CheckpointError unless a tensor [...] is plain and its numbers are finite."""
    is_float = f"{tensor.dtype}".removeprefix("torch.") in (*DTYPES, "float64")
    if not is_float or tensor.layout != torch.strided or tensor.is_meta:
        what = f"tensor {key} is {tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise load_error(f"{name}: {what}; give dense tensors in {', '.join(DTYPES)} or float64")
    # one pass, no copy: with a NaN anywhere, both the minimum and the maximum are NaN
    if tensor.numel() and not all(torch.isfinite(end) for end in torch.aminmax(tensor)):
        raise load_error(f"{name}: tensor {key} contains NaN or infinity; copy it again")
