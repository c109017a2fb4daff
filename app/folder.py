"""Where the page keeps what it is sent: one folder of this process, gone when the process is."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "slimwhisper-serve-"
FILES = "files"  # Gradio's, below ours; uploads carry this path, as its protocol wants it


@contextmanager
def page_folder() -> Iterator[Path]:
    """An empty folder that nobody else may read, for Gradio's files too, removed at the end.

    Those of processes that ended without removing theirs go first.
    """
    parent = Path(tempfile.gettempdir())
    _sweep(parent)
    folder = parent / f"{PREFIX}{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    # Gradio reads these whenever it keeps a file, and when it would report something
    wanted = {"GRADIO_TEMP_DIR": str(folder / FILES), "GRADIO_ANALYTICS_ENABLED": "False"}
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


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX)
        if number.isdecimal() and not folder.is_symlink() and not _lives(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's, or no number of a process
    return True
