"""Where the checkouts are, what they are run against, and copies of them with other names in."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkpoints import random_state, save_openai, tiny_dims
from tests.support.live import free_port, serving
from tests.support.paths import SAMPLES

KEY = "test-api-key-123"  # of speaches' tests
LEFT_OUT = (".git", "node_modules", "docs", "benchmark", "notebooks", "ecosystem-tests")


@dataclass(frozen=True)
class Places:
    """Folders, addresses of servers, and the texts that `copy` puts in."""

    foreign: Path
    work: Path
    url: str  # of a server of `digits`
    wyoming: int  # its other port
    locked_url: str  # of one with KEY
    multilingual_url: str  # of one of random weights
    names: Mapping[str, str]  # what `{name}` stands for in a replacement

    def copy(self, folder: str, files: Sequence[str], changes: Mapping[str, str]) -> Path:
        """A copy of a checkout, in whose files (globs) texts are replaced."""
        target = self.work / folder
        shutil.copytree(self.foreign / folder, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for path in (path for pattern in files for path in target.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            for old, new in changes.items():
                text = text.replace(old, new.format(**self.names))
            path.write_text(text, encoding="utf-8")
        return target


@contextmanager
def running(foreign: Path, work: Path) -> Iterator[Places]:
    """Checkpoints and servers, until the end of the block."""
    paths = {}
    for name in ("english", "multilingual"):
        # a short context: random weights do not know when a text ends
        shape = {"width": 8, "audio_layers": 1, "text_layers": 1, "n_text_ctx": 32}
        dims = tiny_dims(multilingual=name == "multilingual", **shape)
        paths[name] = str(save_openai(work / f"{name}.pt", dims, random_state(dims, seed=3)))
    port = free_port()
    flags = {
        "digits": ["--no-page", "--wyoming", str(port)],
        "locked": ["--no-page", "--api-key", KEY],
        "multilingual": ["--no-page", "--model", paths["multilingual"]],
    }
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving(work / f"{name}.log", *given))[0]
            for name, given in flags.items()
        }
        names = {**paths, "sound": str(SAMPLES / "phone-number.wav")}
        servers = (urls["digits"], port, urls["locked"], urls["multilingual"])
        yield Places(foreign, work, *servers, names)
