"""The table of readers, one for each format of checkpoints, with that of OpenAI's .pt files.

`slimwhisper.formats.load` adds those of other programs.
"""

from dataclasses import fields
from pathlib import Path
from typing import Protocol

from slimwhisper.checkpoint.files import Contents, load_error, read_pickle
from slimwhisper.checkpoint.formats import hugging_face
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
