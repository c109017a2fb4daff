"""Where the page keeps what it is sent: a folder of this process, gone when the process is."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "slimwhisper-serve-"
FILES = "files"  # Gradio's, below ours; uploads carry this path, as its protocol wants it

QUIET = {  # no reports to anybody, no table of all events made anew after each
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}


@contextmanager
def page_folder() -> Iterator[Path]:
    """An empty folder that nobody else may read, for Gradio's files too, removed at the end.

    Gradio learns of it, and of what is in QUIET, from the environment, where it looks whenever it
    needs to know. Folders of processes that were killed go first.
    """
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY)  # held as long as the process lives
    fcntl.flock(lock, fcntl.LOCK_SH)
    wanted = {"GRADIO_TEMP_DIR": str(folder / FILES), **QUIET}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield folder
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders that no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone in the meantime
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
