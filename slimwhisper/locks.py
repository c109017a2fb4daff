"""Opens files that one process uses at a time, on every system."""

import os
from errno import EWOULDBLOCK
from pathlib import Path

# what Windows alone or Unix alone has: bytes as they are, and no links
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_locked(path: Path, *, required: bool = False) -> int:
    """Open a file, which is created if need be, to read it and append to it; lock it until its
    descriptor is closed or this process ends. Where the file system has no locks, only open it.

    Raises BlockingIOError if it is locked already; OSError if it is a link, cannot be opened, or if
    it cannot be locked and `required`.
    """
    from filelock import lock_descriptor  # takes a moment

    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o666)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise BlockingIOError(EWOULDBLOCK, "locked by another process", str(path))
    except OSError as error:
        if required or isinstance(error, BlockingIOError):
            os.close(descriptor)
            raise
    return descriptor
