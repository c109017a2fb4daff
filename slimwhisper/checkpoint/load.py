"""A checkpoint as models are made of it, read from a file or a folder and checked.

`slimwhisper.formats` finds the file or the folder by a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from slimwhisper.checkpoint.files import load_error, validate
from slimwhisper.checkpoint.formats.readers import read
from slimwhisper.checkpoint.settings import (
    DEFAULT_SETTINGS,
    GenerationSettings,
    Heads,
    openai_vocabulary,
    parse_settings,
    read_settings,
)
from slimwhisper.tokens.vocabulary import SIZES, Vocabulary, get_vocabulary
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    It has the tensors of `files.expected_shapes`. There may also be biases of keys, which change
    nothing, and `proj_out.weight`, [V, d], if the matrix of the logits is not the embedding of the
    tokens.

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


def read_checkpoint(path: Path, label: str) -> Checkpoint:
    """Read a checkpoint in any of the formats, and check it.

    Args:
        path: The file or the folder.
        label: The name of the checkpoint, also in messages.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: When it cannot be read, or is not a complete Whisper model.
        OSError: When the file or the folder is not readable.
    """
    found = read(path)
    dims, whole_folder = found.dims, path.is_dir()
    if not whole_folder and dims.n_vocab not in SIZES:
        size = f"{dims.n_vocab} tokens is not one of Whisper's own {SIZES}"
        raise load_error(f"{label}: a vocabulary of {size}; give a folder with its tokenizer")
    validate(label, dims, found.state)
    state = {name: tensor.detach() for name, tensor in found.state.items()}
    if not whole_folder:
        settings = parse_settings(path, found.settings, dims)
        vocabulary = openai_vocabulary(dims, settings)
    else:
        from slimwhisper.checkpoint.vocabulary import read_vocabulary

        vocabulary, settings = read_vocabulary(path, dims, read_settings(path, dims))
    heads = settings.alignment_heads
    return Checkpoint(label, dims, state, heads, vocabulary, settings, found.folder)
