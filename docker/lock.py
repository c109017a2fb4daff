"""Writes the lock files in this folder: `python docker/lock.py [--upgrade]`; needs uv.

One resolution of `pyproject.toml` with the extra `app`, for Python 3.11 and later, is split into
three files:

    torch-cuda.txt    torch, its CUDA libraries, Triton and torchaudio: large, and seldom changed
    build.txt         what builds wheels
    requirements.txt  the rest, which both variants share

and `torch-cpu.txt` gets only torch's version: PyTorch's CPU builds are at a separate index, which
the Dockerfile names. Without --upgrade, locked versions are kept where possible.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
HEADER = "# Written by docker/lock.py from pyproject.toml; do not edit.\n"
FILES = ("torch-cuda.txt", "build.txt", "requirements.txt")
COMPILE = (
    *("uv", "pip", "compile", "pyproject.toml", "--extra", "app"),
    *("--universal", "--python-version", "3.11", "--generate-hashes"),
    *("--fork-strategy", "fewest"),
    *("--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-config", "--quiet"),
)


def file_of(name: str) -> str:
    """The lock file of a package."""
    if name in ("torch", "torchaudio", "triton") or name.startswith(("nvidia-", "cuda-")):
        return "torch-cuda.txt"
    return "build.txt" if name == "setuptools" else "requirements.txt"


def blocks(text: str) -> list[tuple[str, str]]:
    """(name, lines) of each requirement."""
    found = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return [(re.split("[=;@ ]", block, maxsplit=1)[0], block) for block in found]


def main() -> None:
    """Resolve, and split the result."""
    whole = FOLDER / ".lock.txt"
    kept = [FOLDER / name for name in FILES if (FOLDER / name).is_file()]
    whole.write_text("".join(file.read_text() for file in kept))
    try:
        subprocess.run(
            [*COMPILE, *sys.argv[1:], "--output-file", whole],
            cwd=FOLDER.parent,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = blocks(whole.read_text())
    finally:
        whole.unlink()
    for file in FILES:
        text = "".join(block for name, block in found if file_of(name) == file)
        (FOLDER / file).write_text(HEADER + text)
    torch = next(block.split()[0] for name, block in found if name == "torch")
    (FOLDER / "torch-cpu.txt").write_text(f"{HEADER}{torch}\n")


if __name__ == "__main__":
    main()
