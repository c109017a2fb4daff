"""Writes local files atomically: each is complete, or does not exist."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PART = (".slimwhisper-", ".part")  # prefix and suffix of the name of an unfinished file


@contextmanager
def atomic_write(path: Path, *, text: bool = False) -> Iterator[Any]:
    """A file to write to, in bytes or in UTF-8, which replaces `path` at the end.

    Until then it has another name in the same folder; after an error, or if the process is killed,
    `path` is unchanged. The folder has to exist. Raises OSError.
    """
    temporary = path.with_name(secrets.token_hex(6).join(PART))
    try:
        with temporary.open("x" if text else "xb", encoding="utf-8" if text else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
