"""Loads a checkpoint by its name or path, and merges an adapter into it.

These can be loaded: bundled models, openai-whisper's names and `.pt` files, folders, ids and short
names of Hugging Face (see `names`), models of faster-whisper and whisper.cpp that are not quantised
(see `foreign`), and a LoRA adapter in PEFT's format for all of them (see `adapters`). Nothing
except tensors is unpickled.
"""

import logging
import os
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from slimwhisper.checkpoint.files import NO_MEMORY, expand_user, load_error
from slimwhisper.checkpoint.load import READERS, Checkpoint, parse_head_dump, read_checkpoint
from slimwhisper.errors import CheckpointError, memory_errors
from slimwhisper.formats import names
from slimwhisper.formats.foreign import CTranslate2, Ggml
from slimwhisper.formats.settings import openai_vocabulary, parse_settings

logger = logging.getLogger("slimwhisper")

# before those that read any folder and any file, and after those that others have registered
READERS[-2:-2] = [Ggml(), CTranslate2()]


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
            from slimwhisper.formats.adapters import merge_adapter, read_adapter

            lora = read_adapter(adapter, local_files_only)
        with memory_errors(CheckpointError, f"{path}: {NO_MEMORY}"):
            found = read_checkpoint(path, label)
        dims, vocabulary = found.dims, None
        if path.is_dir():
            from slimwhisper.formats.folders import read_folder

            vocabulary, settings = read_folder(path, dims)
        else:
            settings = parse_settings(path, found.settings, dims)
            vocabulary = openai_vocabulary(dims, settings)
        heads = settings.alignment_heads
        if heads is None and label in names.ALIGNMENT_DUMPS:
            heads = parse_head_dump(names.ALIGNMENT_DUMPS[label], dims)
    except OSError as error:  # a parent folder is not readable, or a name is too long
        reason = f"cannot be read: {error.strerror or error}"
        raise load_error(f"{label[:300]}: {reason}; make it readable for this user") from error
    state = found.state
    if adapter is not None and lora is not None:
        state, label = merge_adapter(state, lora), f"{label} with {Path(adapter).name}"
    for row in settings.ignored:
        logger.warning("%s: %s %s is %s, %s", label, settings.file, row.name, row.value, row.effect)
    if in_memory:
        state = {key: tensor.clone() for key, tensor in state.items()}
    return Checkpoint(label, dims, state, heads, vocabulary, settings, found.folder)


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
    if label in names.BUNDLED:
        logger.warning(names.BUNDLED[label])
        return names.bundled_file(label)
    if label in names.MODEL_URLS:
        from slimwhisper.formats.downloads import fetch_openai

        return fetch_openai(label, names.MODEL_URLS[label], download_root, local_files_only)
    if label and (path := expand_user(label)).exists():  # Path("") is the current folder
        return path
    from slimwhisper.formats.downloads import fetch_model, looks_like_hub_id

    if label in names.HUB_IDS or (isinstance(name, str) and looks_like_hub_id(label)):
        return fetch_model(names.HUB_IDS.get(label, label), local_files_only)
    if "/" in label or Path(label).suffix in (".pt", ".pth", ".bin", ".safetensors"):
        what = "no such file or folder; check the path, or give a name like turbo"
        raise load_error(f"{label}: {what}")
    near = get_close_matches(label.lower().removeprefix("whisper-"), names.available_models(), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    known = f"{hint}`slimwhisper models` lists the names"
    raise load_error(f"model {label[:300]!r}: no such name, file or folder; {known}")
