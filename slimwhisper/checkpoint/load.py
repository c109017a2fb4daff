"""Name or file -> dimensions and weights, under OpenAI's tensor names.

Supported: bundled models, openai-whisper's names and `.pt` files (see `openai`), Hugging Face
folders, ids and short names (see `hugging_face`, `names`), unquantised models of faster-whisper and
whisper.cpp (see `foreign`), and PEFT's adapters for all of them (see `adapters`). Nothing except
tensors is unpickled.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.adapter_files import adapter_folder, read_adapter
from slimwhisper.checkpoint.adapters import merge_adapters
from slimwhisper.checkpoint.alignment_heads import Heads, folder_heads, official_heads
from slimwhisper.checkpoint.bundled import BUNDLED, bundled_file
from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.formats.foreign import foreign_reader
from slimwhisper.checkpoint.formats.hugging_face import looks_like_hub_id, read_folder
from slimwhisper.checkpoint.formats.openai import expand_user, fetch_openai, read_openai
from slimwhisper.checkpoint.hub import fetch_model
from slimwhisper.checkpoint.names import HUB_IDS
from slimwhisper.checkpoint.settings import WHISPERS, Settings, read_settings
from slimwhisper.checkpoint.tokenizer import has_tokenizer
from slimwhisper.checkpoint.validate import validate
from slimwhisper.checkpoint.vocabulary import read_vocabulary
from slimwhisper.errors import CheckpointError
from slimwhisper.tokens.vocabulary import SIZES, Vocabulary, get_vocabulary
from slimwhisper.tokens.whisper_package import model_urls
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")


Adapters = str | PathLike[str] | Sequence[str | PathLike[str]] | None


def as_adapters(adapter: Adapters) -> list[str | PathLike[str]]:
    """One, several or none -> a list."""
    if adapter is None:
        return []
    return [adapter] if isinstance(adapter, str | PathLike) else list(adapter)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file's content: `state` maps OpenAI's names to CPU tensors in the file's dtype.

    It has the tensors of `validate.expected_shapes`, perhaps biases of keys, which change nothing,
    and `proj_out.weight`, [V, d], if the logits' matrix is not the token embedding. What an adapter
    changed is float32.
    """

    name: str  # with those of its adapters
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
    """Names that `load_checkpoint` knows: bundled, OpenAI's, and those of `names`."""
    return [*BUNDLED, *model_urls(), *HUB_IDS]


def load_checkpoint(
    name: str | PathLike[str],
    *,
    download_root: str | PathLike[str] | None = None,
    local_files_only: bool = False,
    in_memory: bool = False,
    adapter: Adapters = None,
) -> Checkpoint:
    """Load by bundled or official name, path (file or folder), short name or hub id, in order.

    Arguments:
        name: a `Path` is never read as a hub id.
        download_root: where named models are kept; None: `default_download_root()`. Hub models
            stay in the hub's own cache.
        local_files_only: never use the network.
        in_memory: copy the weights into memory; else they are mapped from the file if its format
            allows it.
        adapter: PEFT's adapter folders or hub ids, one or several, merged in this order.
    Raises:
        CheckpointError: in one line, the file, what is wrong and what would work.
    """
    label = os.fspath(name)
    try:
        heads: Heads | None = None
        folder: Path | None = None
        if label in BUNDLED:
            logger.warning(BUNDLED[label])
            dims, state = read_openai(bundled_file(label))
        elif label in model_urls():
            file = fetch_openai(label, model_urls()[label], download_root, local_files_only)
            dims, state = read_openai(file)
            heads = official_heads(label, dims)
        elif label and (path := expand_user(label)).exists():  # Path("") is the current folder
            dims, state = _read_path(path)
            folder = path if path.is_dir() else None
        elif label in HUB_IDS or (isinstance(name, str) and looks_like_hub_id(label)):
            folder = fetch_model(HUB_IDS.get(label, label), local_files_only)
            dims, state = _read_path(folder)
        else:
            raise _unknown(label)
        folders = [adapter_folder(each, local_files_only) for each in as_adapters(adapter)]
        adapters = [read_adapter(each) for each in folders]
    except OSError as error:  # a parent folder is not readable, or a name is too long
        raise problem(
            f"{label[:300]}: cannot be read: {error.strerror or error}; give another file, "
            "or this user the right"
        ) from error
    # an adapter for new words brings the tokenizer that has them
    tokens = next((each for each in reversed(folders) if has_tokenizer(each)), folder)
    if tokens is None:
        _check_size(label, dims)
    validate(label, dims, state)
    if adapters:
        size = dims.n_vocab
        dims, state = merge_adapters(dims, state, adapters)
        label = f"{label} with {', '.join(Path(each).name for each in as_adapters(adapter))}"
        validate(label, dims, state)
        if tokens is None:
            _check_size(label, dims)
        if tokens is folder and dims.n_vocab != size:
            raise problem(
                f"{label}: the vocabulary grows from {size} to {dims.n_vocab} tokens, and no "
                "adapter's folder has their tokenizer; save it there too"
            )
    vocabulary, settings = None, WHISPERS
    if folder is not None:
        heads = folder_heads(folder, dims)
        settings = read_settings(folder, dims)
    if tokens is not None:
        vocabulary, settings = read_vocabulary(tokens, dims, settings)
    _warn(label, settings)
    tensors = {name: tensor.detach() for name, tensor in state.items()}
    if in_memory:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return Checkpoint(label, dims, tensors, heads, vocabulary, settings)


def _check_size(label: str, dims: Dims) -> None:
    """Of the vocabulary, where no tokenizer says what the tokens are."""
    if dims.n_vocab not in SIZES:
        raise problem(
            f"{label}: a vocabulary of {dims.n_vocab} is not one of Whisper's own {SIZES}; give a "
            "Hugging Face folder with its tokenizer"
        )


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
    if (read_foreign := foreign_reader(path)) is not None:
        return read_foreign(path)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise problem(f"{path}: is no regular file; give a .pt file or a Hugging Face folder")
    if path.suffix == ".safetensors":
        raise problem(f"{path}: give the folder with its config.json, not the .safetensors file")
    return read_openai(path)
