"""The table of readers, one for each format of checkpoints. A module of this package is one."""

from pathlib import Path
from typing import Protocol

from slimwhisper.checkpoint.files import Contents, load_error
from slimwhisper.checkpoint.formats import ctranslate2, ggml, hugging_face, openai


class Reader(Protocol):
    """Reads one format."""

    def detect(self, path: Path) -> bool:
        """Whether a file or folder is in this format, by its content."""

    def read(self, path: Path) -> Contents:
        """What is in it, which is checked later. Raises CheckpointError, also for variants of the
        format that cannot be read.
        """


READERS: list[Reader] = [ggml, ctranslate2, hugging_face, openai]  # the first that detects it reads


def register(reader: Reader) -> None:
    """Add a format, which is tried before the others."""
    READERS.insert(0, reader)


def read(path: Path) -> Contents:
    """A checkpoint in any of the formats. Raises CheckpointError."""
    for reader in READERS:
        if reader.detect(path):
            return reader.read(path)
    raise load_error(f"{path}: not a regular file; give a .pt file or a Hugging Face folder")
