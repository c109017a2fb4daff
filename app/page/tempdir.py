"""The folder for the page's files: private to this process, and removed when it ends."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "slimwhisper-serve-"
FILES = "files"  # the subfolder for Gradio's uploads; its protocol shows clients their paths

QUIET = {  # no telemetry, and no table of all events rebuilt after each one
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}


@contextmanager
def page_folder() -> Iterator[Path]:
    """A new folder that only this user can read, for Gradio's files too; removed at the end.

    Gradio reads the folder and the settings in QUIET from environment variables, each time it needs
    them. Folders of processes that were killed are removed first.
    """
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY)  # held until the process ends
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
    """Remove the folders whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or just removed
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
