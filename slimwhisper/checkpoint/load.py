"""Name or file -> dimensions and weights, under OpenAI's tensor names.

Supported: bundled models, openai-whisper's names and `.pt` files (see `openai`), and Hugging Face
folders and ids with safetensors (see `hugging_face`). Nothing except tensors is unpickled.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.alignment_heads import Heads, folder_heads, official_heads
from slimwhisper.checkpoint.bundled import BUNDLED, bundled_file
from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.hugging_face import (
    DISTIL_IDS,
    fetch_hub,
    looks_like_hub_id,
    read_folder,
)
from slimwhisper.checkpoint.openai import expand_user, fetch_openai, read_openai
from slimwhisper.checkpoint.settings import WHISPERS, Settings, read_settings
from slimwhisper.checkpoint.tokens import read_vocabulary
from slimwhisper.checkpoint.validate import validate
from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims
from slimwhisper.vocabulary import SIZES, Vocabulary, get_vocabulary

logger = logging.getLogger("slimwhisper")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file's content: `state` maps OpenAI's names to CPU tensors in the file's dtype."""

    name: str
    dims: Dims
    state: Mapping[str, Tensor]
    alignment_heads: Heads | None = None  # None: `default_heads`
    vocabulary: Vocabulary | None = None  # None: `get_vocabulary` of the dimensions
    settings: Settings = WHISPERS  # that came with the model

    @property
    def tokens(self) -> Vocabulary:
        """Its vocabulary."""
        return self.vocabulary or get_vocabulary(self.dims)


def available_models() -> list[str]:
    """Names that `load_checkpoint` knows: bundled, OpenAI's, and distil-whisper's."""
    import whisper

    return [*BUNDLED, *whisper.available_models(), *DISTIL_IDS]


def load_checkpoint(
    name: str | PathLike[str],
    *,
    download_root: str | PathLike[str] | None = None,
    local_files_only: bool = False,
    in_memory: bool = False,
) -> Checkpoint:
    """Load by bundled or official name, path (`.pt` file, Hugging Face folder) or hub id, in order.

    Arguments:
        name: a `Path` is never read as a hub id.
        download_root: where named models are kept; None: `default_download_root()`. Hub models
            stay in the hub's own cache.
        local_files_only: never use the network.
        in_memory: copy the weights into memory; else they are mapped from the file if its format
            allows it.
    Raises:
        CheckpointError: in one line, the file, what is wrong and what would work.
    """
    import whisper

    label = os.fspath(name)
    try:
        heads: Heads | None = None
        folder: Path | None = None
        if label in BUNDLED:
            logger.warning(BUNDLED[label])
            dims, state = read_openai(bundled_file(label))
        elif label in whisper._MODELS:
            file = fetch_openai(label, whisper._MODELS[label], download_root, local_files_only)
            dims, state = read_openai(file)
            heads = official_heads(label, dims)
        elif label and (path := expand_user(label)).exists():  # Path("") is the current folder
            dims, state = _read_path(path)
            folder = path if path.is_dir() else None
        elif label in DISTIL_IDS or (isinstance(name, str) and looks_like_hub_id(label)):
            folder = fetch_hub(DISTIL_IDS.get(label, label), local_files_only)
            dims, state = read_folder(folder)
        else:
            raise _unknown(label)
    except OSError as error:  # a parent folder is not readable, or a name is too long
        raise problem(
            f"{label[:300]}: cannot be read: {error.strerror or error}; give another file, "
            "or this user the right"
        ) from error
    if folder is None and dims.n_vocab not in SIZES:
        raise problem(
            f"{label}: a vocabulary of {dims.n_vocab} is not one of Whisper's own {SIZES}; give a "
            "Hugging Face folder with its tokenizer"
        )
    validate(label, dims, state)
    vocabulary, settings = None, WHISPERS
    if folder is not None:
        heads = folder_heads(folder, dims)
        vocabulary, settings = read_vocabulary(folder, dims, read_settings(folder, dims))
        _warn(label, settings)
    tensors = {name: tensor.detach() for name, tensor in state.items()}
    if in_memory:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return Checkpoint(label, dims, tensors, heads, vocabulary, settings)


def _warn(label: str, settings: Settings) -> None:
    """One line for what the model's makers set and cannot be followed."""
    for row in settings.ignored:
        logger.warning(
            "%s: %s %s is %s", label, settings.file, row.name, f"{row.value}, {row.effect}"
        )


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
    """A folder or file -> dimensions, and OpenAI's name -> tensor, matrices [out, in]."""
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise problem(f"{path}: is no regular file; give a .pt file or a Hugging Face folder")
    if path.suffix == ".safetensors":
        raise problem(f"{path}: give the folder with its config.json, not the .safetensors file")
    return read_openai(path)
