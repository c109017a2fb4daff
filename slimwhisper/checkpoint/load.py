"""Loads a checkpoint by its name or path: its dimensions, and its weights by OpenAI's names.

These can be loaded: bundled models, openai-whisper's names and `.pt` files, folders, ids and short
names of Hugging Face (see `names`), models of faster-whisper and whisper.cpp that are not quantised
(see `formats`), and a LoRA adapter in PEFT's format for all of them (see `adapters`). Nothing
except tensors is unpickled.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.files import expand_user, load_error, validate
from slimwhisper.checkpoint.formats.openai import fetch_openai
from slimwhisper.checkpoint.formats.readers import read
from slimwhisper.checkpoint.names import (
    BUNDLED,
    HUB_IDS,
    MODEL_URLS,
    bundled_file,
    looks_like_hub_id,
)
from slimwhisper.checkpoint.settings import (
    DEFAULT_SETTINGS,
    GenerationSettings,
    Heads,
    official_heads,
    openai_vocabulary,
    parse_settings,
    read_settings,
)
from slimwhisper.errors import CheckpointError
from slimwhisper.tokens.vocabulary import SIZES, Vocabulary, get_vocabulary
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    It has the tensors of `files.expected_shapes`. There may also be biases of keys, which change
    nothing, and `proj_out.weight`, [V, d], if the matrix of the logits is not the embedding of the
    tokens. Weights of the encoder may be two factors in place of a matrix (`formats.hugging_face`).

    Attributes:
        name: The model's name, followed by its adapter's name.
        dims: The dimensions of the model.
        state: The tensors by OpenAI's names, on the CPU and in the file's dtype. What an adapter
            changed is float32.
        alignment_heads: The heads that the times of words are read from, by their layer. None means
            `default_heads`.
        vocabulary: The vocabulary. None means that of the dimensions, `get_vocabulary`.
        settings: The settings for decoding that came with the model.
        folder: The Hugging Face folder that it was read from, if it was.
    """

    name: str
    dims: Dims
    state: Mapping[str, Tensor]
    alignment_heads: Heads | None = None
    vocabulary: Vocabulary | None = None
    settings: GenerationSettings = DEFAULT_SETTINGS
    folder: Path | None = None

    @property
    def tokens(self) -> Vocabulary:
        """The vocabulary of the model."""
        return self.vocabulary or get_vocabulary(self.dims)


def available_models() -> list[str]:
    """List the names that `load_model` knows. This is `whisper.available_models`.

    Returns:
        The names of the bundled models, of OpenAI's, and of some models of the Hugging Face hub.
    """
    return [*BUNDLED, *MODEL_URLS, *HUB_IDS]


def load_checkpoint(
    name: str | PathLike[str],
    *,
    download_root: str | PathLike[str] | None = None,
    local_files_only: bool = False,
    in_memory: bool = False,
    adapter: str | PathLike[str] | None = None,
) -> Checkpoint:
    """Load a checkpoint.

    What `name` may be is tried in this order: a bundled or official name, the path of a file or a
    folder, a short name or an id of the Hugging Face hub.

    Args:
        name: The name or the path. A `Path` is never taken for an id.
        download_root: Where named models are kept. None means `default_download_root()`. Models of
            the hub stay in the hub's own cache.
        local_files_only: Whether never to use the network.
        in_memory: Whether to copy the weights into memory. Otherwise they are mapped from the file
            if its format allows it.
        adapter: The folder or the hub's id of a LoRA adapter in PEFT's format, which is merged into
            the weights.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: When it cannot be found, downloaded or loaded. The message is one line with
            the file, what is wrong and what to do.
    """
    label, lora = os.fspath(name), None
    try:
        path = locate_checkpoint(name, download_root, local_files_only)
        if adapter is not None:
            from slimwhisper.checkpoint.adapters import adapter_folder, merge_adapter, read_adapter

            lora = read_adapter(adapter_folder(adapter, local_files_only))
        checkpoint = _read(path, label)
    except OSError as error:  # a parent folder is not readable, or a name is too long
        reason = f"cannot be read: {error.strerror or error}"
        raise load_error(f"{label[:300]}: {reason}; make it readable for this user") from error
    if adapter is not None and lora is not None:
        state, name = merge_adapter(checkpoint.state, lora), f"{label} with {Path(adapter).name}"
        checkpoint = replace(checkpoint, name=name, state=state)
    label, settings = checkpoint.name, checkpoint.settings
    for row in settings.ignored:
        logger.warning("%s: %s %s is %s, %s", label, settings.file, row.name, row.value, row.effect)
    if in_memory:
        state = {key: tensor.clone() for key, tensor in checkpoint.state.items()}
        checkpoint = replace(checkpoint, state=state)
    return checkpoint


def locate_checkpoint(
    name: str | PathLike[str], download_root: str | PathLike[str] | None, local_files_only: bool
) -> Path:
    """Find the file or the folder of a model, and download it if necessary.

    Args:
        name: The name or the path, as in `load_checkpoint`.
        download_root: Where named models are kept.
        local_files_only: Whether never to use the network.

    Returns:
        The path.

    Raises:
        CheckpointError: When it cannot be found or downloaded.
    """
    label = os.fspath(name)
    if label in BUNDLED:
        logger.warning(BUNDLED[label])
        return bundled_file(label)
    if label in MODEL_URLS:
        return fetch_openai(label, MODEL_URLS[label], download_root, local_files_only)
    if label and (path := expand_user(label)).exists():  # Path("") is the current folder
        return path
    if label in HUB_IDS or (isinstance(name, str) and looks_like_hub_id(label)):
        from slimwhisper.checkpoint.hub import fetch_model

        return fetch_model(HUB_IDS.get(label, label), local_files_only)
    raise _unknown(label)


def _read(path: Path, label: str) -> Checkpoint:
    """A file or folder, checked. Raises CheckpointError, OSError."""
    found = read(path)
    dims, whole_folder = found.dims, path.is_dir()
    if not whole_folder and dims.n_vocab not in SIZES:
        size = f"{dims.n_vocab} tokens is not one of Whisper's own {SIZES}"
        raise load_error(f"{label}: a vocabulary of {size}; give a folder with its tokenizer")
    validate(label, dims, found.state)
    state = {name: tensor.detach() for name, tensor in found.state.items()}
    vocabulary: Vocabulary | None
    if whole_folder:
        from slimwhisper.checkpoint.vocabulary import read_vocabulary

        vocabulary, settings = read_vocabulary(path, dims, read_settings(path, dims))
    else:
        settings = parse_settings(path, found.settings, dims)
        vocabulary = openai_vocabulary(dims, settings)
    heads = settings.alignment_heads or official_heads(label, dims)
    return Checkpoint(label, dims, state, heads, vocabulary, settings, found.folder)


def _unknown(label: str) -> CheckpointError:
    if "/" in label or Path(label).suffix in (".pt", ".pth", ".bin", ".safetensors"):
        return load_error(
            f"{label}: no such file or folder; check the path, or give a name like turbo"
        )
    near = get_close_matches(label.lower(), available_models(), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    known = f"{hint}`slimwhisper models` lists the names"
    return load_error(f"model {label[:300]!r}: no such name, file or folder; {known}")
