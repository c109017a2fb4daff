"""Name or file -> dimensions and weights, under OpenAI's tensor names.

Known: bundled models, openai-whisper's names (downloaded, checksums verified), OpenAI `.pt` files,
and Hugging Face folders and ids with safetensors (`slimwhisper.hub`). Nothing is unpickled but
tensors.
"""

import hashlib
import logging
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from http.client import HTTPException
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import torch
from torch import Tensor

from slimwhisper.alignment import Heads, folder_heads, official_heads
from slimwhisper.bundled import BUNDLED, bundled_file
from slimwhisper.errors import CheckpointError
from slimwhisper.hub import DISTIL_IDS, fetch_hub, looks_like_hub_id, problem, read_folder
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")

VOCABULARIES = (51_864, 51_865, 51_866)  # English, multilingual, large-v3's
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds: `state` maps OpenAI's names to CPU tensors in the file's dtype."""

    name: str
    dims: Dims
    state: Mapping[str, Tensor]
    alignment_heads: Heads | None = None  # None: `default_heads`


def available_models() -> list[str]:
    """Names that `load_checkpoint` knows: bundled, OpenAI's, and distil-whisper's."""
    import whisper

    return [*BUNDLED, *whisper.available_models(), *DISTIL_IDS]


def default_download_root() -> Path:
    """openai-whisper's folder: ${XDG_CACHE_HOME:-~/.cache}/whisper."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "whisper"


def load_checkpoint(
    name: str | PathLike[str],
    *,
    download_root: str | PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Checkpoint:
    """Load by bundled or official name, path (`.pt` file, Hugging Face folder) or hub id, in order.

    Arguments:
        name: a `Path` is never taken for a hub id.
        download_root: where named models are kept; None: `default_download_root()`. Hub models
            stay in the hub's own cache.
        local_files_only: never go to the network.
    Raises:
        CheckpointError: one line that names the file, what is wrong and what would work.
    """
    import whisper

    label = os.fspath(name)
    try:
        heads: Heads | None = None
        if label in BUNDLED:
            logger.warning(BUNDLED[label])
            dims, state = _read_openai(bundled_file(label))
        elif label in whisper._MODELS:
            file = _fetch(label, whisper._MODELS[label], download_root, local_files_only)
            dims, state = _read_openai(file)
            heads = official_heads(label, dims)
        elif label and (path := _expanded(label)).exists():  # Path("") is the current folder
            dims, state = _read_path(path)
            heads = folder_heads(path, dims)
        elif label in DISTIL_IDS or (isinstance(name, str) and looks_like_hub_id(label)):
            folder = fetch_hub(DISTIL_IDS.get(label, label), local_files_only)
            dims, state = read_folder(folder)
            heads = folder_heads(folder, dims)
        else:
            raise _unknown(label)
    except OSError as error:  # a folder on the way may not be looked into; a name is too long
        raise problem(
            f"{label[:300]}: cannot be read: {error.strerror or error}; give another file, "
            "or this user the right"
        ) from error
    _validate(label, dims, state)
    return Checkpoint(label, dims, {k: tensor.detach() for k, tensor in state.items()}, heads)


def _expanded(path: str | PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # "~" of nobody
        raise problem(f"{os.fspath(path)}: {error} Give a path without ~") from error


def _unknown(label: str) -> CheckpointError:
    if "/" in label or Path(label).suffix in (".pt", ".pth", ".bin", ".safetensors"):
        return problem(
            f"{label}: no such file or folder; give an existing one, or a name such as 'turbo'"
        )
    names = available_models()
    near = get_close_matches(label.lower(), names, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return problem(
        f"model {label[:300]!r}: no such name, file or folder; {hint}names are {', '.join(names)}"
    )


def _read_path(path: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise problem(f"{path}: is no regular file; give a .pt file or a Hugging Face folder")
    if path.suffix == ".safetensors":
        raise problem(f"{path}: give the folder with its config.json, not the .safetensors file")
    return _read_openai(path)


def _fetch(
    name: str, url: str, download_root: str | PathLike[str] | None, local_files_only: bool
) -> Path:
    """The verified file of an official model, downloaded when it is not there."""
    try:
        root = default_download_root() if download_root is None else _expanded(download_root)
    except RuntimeError as error:  # of Path.home()
        raise problem(f"model {name!r}: {error} Set XDG_CACHE_HOME") from error
    digest, file_name = url.split("/")[-2:]
    file = root / file_name
    remedy = f"give a model file, or place {file_name} at {file}"
    try:
        exists = file.exists()
        if exists and not file.is_file():
            raise problem(f"{file}: is no file; move it away, or choose another folder")
        if exists and _sha256(file) == digest:
            return file
    except OSError as error:
        raise problem(f"{file}: cannot be read: {error.strerror}; {remedy}") from error
    if local_files_only:
        lacks = f"does not have its checksum in {root}" if exists else f"is not in {root}"
        raise problem(f"model {name!r} {lacks}, and nothing may be fetched; {remedy}")
    if exists:
        logger.warning("%s does not have its checksum; downloading it again", file)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # writes to a temporary file, verifies, renames: an interrupted run leaves nothing behind
        torch.hub.download_url_to_file(url, str(file), hash_prefix=digest, progress=True)
    except RuntimeError as error:  # torch.hub's word for a wrong checksum
        raise problem(
            f"model {name!r}: what arrived from {url} was cut short or changed: its checksum "
            f"differs, and it was deleted; try again, or {remedy}"
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
            reason: object = error  # with its number
        else:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        text = f"{reason}" or type(error).__name__
        raise problem(f"cannot download {name!r} to {file}: {text}; {remedy}") from error
    return file


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _read_openai(file: Path) -> tuple[Dims, Mapping[str, Tensor]]:
    """{"dims", "model_state_dict"}, memory-mapped where the file's format allows it."""
    foreign = (
        f"{file}: not an OpenAI Whisper checkpoint (no 'dims' and 'model_state_dict'); "
        "for Hugging Face models give the folder with config.json and safetensors"
    )
    try:
        content: Any = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():  # the unpickler names each function it will not call
            raise problem(
                f"{file}: refused: it holds Python objects, not tensors alone, and could run code; "
                "use a checkpoint from a source that you trust, saved as tensors"
            ) from error
        raise problem(f"{file}: damaged or no checkpoint; copy it again") from error
    except PermissionError as error:
        raise problem(f"{file}: permission denied; give this user the right") from error
    except Exception as error:  # damaged files fail inside torch.load in a dozen ways
        raise problem(
            f"{file}: truncated, damaged or no checkpoint; copy or download it again"
        ) from error
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise problem(foreign)
    given, state = content["dims"], content["model_state_dict"]
    names = [f.name for f in fields(Dims)]
    if not isinstance(given, dict) or not isinstance(state, dict):
        raise problem(foreign)
    if set(given) != set(names) or not all(type(v) is int and v > 0 for v in given.values()):
        raise problem(
            f"{file}: its 'dims' are not the ten positive whole numbers {', '.join(names)}"
        )
    return Dims(**given), state


def expected_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Whisper model and its shape, [out, in] for matrices."""
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
    shapes["decoder.token_embedding.weight"] = (dims.n_vocab, d)
    shapes["decoder.positional_embedding"] = (dims.n_text_ctx, d)
    for i in range(dims.n_text_layer):
        block(f"decoder.blocks.{i}", d, cross=True)
    affine("decoder.ln", d)
    return shapes


def _validate(name: str, dims: Dims, state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless this is a Whisper model, whole and finite."""
    wrong = {
        f"a vocabulary of {dims.n_vocab} is not Whisper's {VOCABULARIES}": (
            dims.n_vocab not in VOCABULARIES
        ),
        f"{dims.n_mels} mel bands are not Whisper's 80 or 128": dims.n_mels not in (80, 128),
        f"{dims.n_audio_ctx} audio positions are not Whisper's 1500": dims.n_audio_ctx != 1500,
        f"{dims.n_text_ctx} text positions are not 8 to 448": not 8 <= dims.n_text_ctx <= 448,
        f"encoder and decoder differ in width: {dims.n_audio_state}, {dims.n_text_state}": (
            dims.n_audio_state != dims.n_text_state
        ),
        f"{dims.n_audio_state} is not divisible by {dims.n_audio_head} heads": (
            dims.n_audio_state % dims.n_audio_head != 0
        ),
        f"{dims.n_text_state} is not divisible by {dims.n_text_head} heads": (
            dims.n_text_state % dims.n_text_head != 0
        ),
    }
    for reason, holds in wrong.items():
        if holds:
            raise problem(f"{name}: {reason}; it cannot be run as Whisper")

    layers = dims.n_audio_layer + dims.n_text_layer
    if layers > len(state):  # before anything grows with a number that a file gave
        raise problem(
            f"{name}: {len(state)} tensors are too few for its {layers} layers; copy it again"
        )
    expected = expected_shapes(dims)
    optional = {
        n.removesuffix("weight") + "bias": shape[:1]
        for n, shape in expected.items()
        if n.endswith(".key.weight")
    }  # cancels in the softmax; folding drops it
    shapes = expected | optional
    missing = [n for n in expected if n not in state]
    extra = [n for n in state if n not in shapes]
    for kind, names in (("misses", missing), ("has unknown", extra)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise problem(
                f"{name}: {kind} tensor {names[0]!s:.200}{more}; it is no Whisper model of its "
                f"dimensions, {dims.n_audio_layer} + {dims.n_text_layer} layers"
            )
    for key, tensor in state.items():
        shape = shapes[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            has = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise problem(
                f"{name}: tensor {key} has shape {has}, its dimensions ask for {list(shape)}; "
                "it is no whole Whisper model"
            )
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise problem(
                f"{name}: tensor {key} is {tensor.dtype}, {tensor.layout} on {tensor.device}; "
                "plain float16, bfloat16, float32 and float64 work"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise problem(
                f"{name}: tensor {key} holds NaN or infinity, no finite numbers; copy it again"
            )
