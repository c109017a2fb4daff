"""Name or file -> dimensions and weights, under OpenAI's tensor names.

Known: openai-whisper's names (downloaded, checksums verified), OpenAI `.pt` files, and Hugging Face
folders and ids with safetensors (`slimwhisper.hub`). Nothing is unpickled but tensors.
"""

import hashlib
import logging
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor

from slimwhisper.errors import CheckpointError
from slimwhisper.hub import DISTIL_IDS, fetch_hub, looks_like_hub_id, read_folder
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")

VOCABULARIES = (51_864, 51_865, 51_866)  # English, multilingual, large-v3's


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds: `state` maps OpenAI's names to CPU tensors in the file's dtype."""

    name: str
    dims: Dims
    state: Mapping[str, Tensor]


def available_models() -> list[str]:
    """Names that `load_checkpoint` can fetch."""
    import whisper

    return [*whisper.available_models(), *DISTIL_IDS]


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
    """Load by official name, path (`.pt` file or Hugging Face folder) or hub id, in that order.

    Arguments:
        download_root: where named models are kept; None: `default_download_root()`. Hub models
            stay in the hub's own cache.
        local_files_only: never go to the network.
    Raises:
        CheckpointError: one line that names the file, what is wrong and what would work.
    """
    import whisper

    label = os.fspath(name)
    path = Path(label).expanduser()
    if label in whisper._MODELS:
        root = default_download_root() if download_root is None else Path(download_root)
        file = _fetch(label, whisper._MODELS[label], root.expanduser(), local_files_only)
        found = _read_openai(file)
    elif path.is_dir():
        found = read_folder(path)
    elif path.is_file():
        if path.suffix == ".safetensors":
            raise CheckpointError(
                f"{label}: give the folder with its config.json, not the .safetensors file"
            )
        found = _read_openai(path)
    elif label in DISTIL_IDS or (looks_like_hub_id(label) and not path.exists()):
        found = read_folder(fetch_hub(DISTIL_IDS.get(label, label), local_files_only))
    else:
        near = get_close_matches(label, available_models(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "give an existing file,"
        raise CheckpointError(
            f"model {label!r}: no such name, file or folder; {hint} "
            f"names are {', '.join(available_models())}"
        )
    dims, state = found
    _validate(label, dims, state)
    return Checkpoint(label, dims, state)


def _fetch(name: str, url: str, root: Path, local_files_only: bool) -> Path:
    """The verified file of an official model, downloaded when it is not there."""
    digest, file_name = url.split("/")[-2:]
    file = root / file_name
    if file.is_file():
        if _sha256(file) == digest:
            return file
        logger.warning("%s does not have its checksum; downloading it again", file)
    remedy = f"give a model file, or place {file_name} at {file}"
    if local_files_only:
        raise CheckpointError(f"model {name!r} is not in {root}; {remedy}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        # writes to a temporary file, verifies, renames: an interrupted run leaves nothing behind
        torch.hub.download_url_to_file(url, str(file), hash_prefix=digest, progress=True)
    except RuntimeError as error:  # torch.hub's word for a wrong checksum
        raise CheckpointError(
            f"model {name!r}: the download does not have its checksum; try again, or {remedy}"
        ) from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot download {name!r}: {reason}; {remedy}") from error
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
        if "weights_only" in str(error).lower() or "unsupported" in str(error).lower():
            raise CheckpointError(
                f"{file}: refused: it holds Python objects, not tensors alone, and could run code; "
                "use a checkpoint from a source that you trust, saved as tensors"
            ) from error
        raise CheckpointError(f"{file}: damaged or no checkpoint; copy it again") from error
    except PermissionError as error:
        raise CheckpointError(f"{file}: permission denied; give this user the right") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(
            f"{file}: truncated, damaged or no checkpoint; copy or download it again"
        ) from error
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise CheckpointError(foreign)
    given, state = content["dims"], content["model_state_dict"]
    names = [f.name for f in fields(Dims)]
    if not isinstance(given, dict) or not isinstance(state, dict):
        raise CheckpointError(foreign)
    if sorted(given) != sorted(names) or not all(type(v) is int and v > 0 for v in given.values()):
        raise CheckpointError(f"{file}: its 'dims' are not the ten positive numbers of Whisper's")
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
            raise CheckpointError(f"{name}: {reason}; it cannot be run as Whisper")

    expected = expected_shapes(dims)
    optional = {
        n.removesuffix("weight") + "bias" for n in expected if n.endswith(".key.weight")
    }  # cancels in the softmax; folding drops it
    missing = [n for n in expected if n not in state]
    extra = [n for n in state if n not in expected and n not in optional]
    for kind, names in (("misses", missing), ("has unknown", extra)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(
                f"{name}: {kind} tensor {names[0]}{more}; it is no Whisper model of its dimensions"
            )
    for key, shape in expected.items():
        tensor = state[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            has = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CheckpointError(
                f"{name}: tensor {key} has shape {has}, its dimensions ask for {list(shape)}"
            )
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{name}: tensor {key} holds values that are no finite numbers; copy it again"
            )
