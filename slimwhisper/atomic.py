"""Files of this machine that are whole, or not there."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PART = (".slimwhisper-", ".part")  # prefix and suffix of the name of an unfinished file


@contextmanager
def atomic_write(path: Path, *, text: bool = False) -> Iterator[Any]:
    """A file to write to, in bytes or in UTF-8, which takes the place of `path` at the end.

    Until then it lies beside it under another name; after an error, or if the process is killed,
    `path` is as it was. The folder has to exist. Raises OSError.
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
