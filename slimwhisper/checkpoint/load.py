"""A checkpoint as models are made of it, read from a file or a folder and checked; and the table of
readers, one for each format of checkpoints.

`slimwhisper.formats` adds the readers for other programs' files, and finds a checkpoint by a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from slimwhisper.checkpoint import hugging_face
from slimwhisper.checkpoint.files import Contents, load_error, read_pickle, validate
from slimwhisper.checkpoint.settings import DEFAULT_SETTINGS, GenerationSettings, Heads
from slimwhisper.tokens.vocabulary import SIZES, Vocabulary, get_vocabulary
from slimwhisper.types import Dims


class Reader(Protocol):
    """What reads one format of checkpoints.

    A new format is an object with these methods, or a module with these functions, that is added by
    `register`.
    """

    def detect(self, path: Path) -> bool:
        """Return whether a file or a folder is in this format, by its content.

        Args:
            path: The file or the folder.

        Returns:
            Whether it is.
        """

    def read(self, path: Path) -> Contents:
        """Read a checkpoint. What is in it is checked later.

        Args:
            path: The file or the folder.

        Returns:
            The content.

        Raises:
            CheckpointError: When it cannot be read, or is in a variant of the format that is not
                supported.
        """


class OpenAI:
    """The `Reader` of OpenAI's .pt files."""

    def detect(self, path: Path) -> bool:
        """Whether it is a file; `read` says what is wrong with one in no other format."""
        return path.is_file()

    def read(self, path: Path) -> Contents:
        """{"dims", "model_state_dict"}: name -> tensor, matrices [out, in], mapped if possible; and
        the settings that stand beside them, which openai-whisper does not read: "audio_window", and
        "generation_config", as a folder's file of this name.
        """
        missing = "no 'dims' and 'model_state_dict'"
        foreign = f"{path}: not an OpenAI Whisper checkpoint ({missing}); give one, or a folder"
        content = read_pickle(path)
        if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
            raise load_error(foreign)
        dims, state = content["dims"], content["model_state_dict"]
        names = [f.name for f in fields(Dims)]
        if not isinstance(dims, dict) or not isinstance(state, dict):
            raise load_error(foreign)
        if set(dims) != set(names) or not all(type(v) is int for v in dims.values()):
            raise load_error(f"{path}: its 'dims' are not the ten whole numbers {', '.join(names)}")
        kept = content.get("generation_config", {})
        if not isinstance(kept, dict):
            raise load_error(f"{path}: its 'generation_config' is no dictionary; leave it out")
        return Contents(Dims(**dims), state, {"audio_window": content.get("audio_window")} | kept)


# the first that detects it reads; the last two detect any folder, and any file
READERS: list[Reader] = [hugging_face, OpenAI()]


def register(reader: Reader) -> None:
    """Add a format, which is tried before the others.

    Args:
        reader: The reader.
    """
    READERS.insert(0, reader)


def read(path: Path) -> Contents:
    """Read a checkpoint in any of the formats.

    Args:
        path: The file or the folder.

    Returns:
        The content.

    Raises:
        CheckpointError: When it cannot be read, or is in none of the formats.
    """
    for reader in READERS:
        if reader.detect(path):
            return reader.read(path)
    raise load_error(f"{path}: not a regular file; give a .pt file or a Hugging Face folder")


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


def read_checkpoint(path: Path, label: str) -> Contents:
    """Read a checkpoint in any of the formats, and check its tensors.

    `slimwhisper.formats` reads the settings and the vocabulary.

    Args:
        path: The file or the folder.
        label: The name of the checkpoint, in messages.

    Returns:
        The content.

    Raises:
        CheckpointError: When it cannot be read, or is not a complete Whisper model.
        OSError: When the file or the folder is not readable.
    """
    found = read(path)
    size = found.dims.n_vocab
    if not path.is_dir() and size not in SIZES:
        what = f"{size} tokens is not one of Whisper's own {SIZES}"
        raise load_error(f"{label}: a vocabulary of {what}; give a folder with its tokenizer")
    validate(label, found.dims, found.state)
    return replace(found, state={name: t.detach() for name, t in found.state.items()})
