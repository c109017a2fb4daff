"""The table of readers, one for each format of checkpoints.

The modules of this package are two; `slimwhisper.formats.load` adds those of other programs.
"""

from pathlib import Path
from typing import Protocol

from slimwhisper.checkpoint.files import Contents, load_error
from slimwhisper.checkpoint.formats import hugging_face, openai


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


# the first that detects it reads; the last two detect any folder, and any file
READERS: list[Reader] = [hugging_face, openai]


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
