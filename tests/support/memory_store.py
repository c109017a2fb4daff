"""A store in this process, `memory://`, and jobs on it with a model that needs no weights."""

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import fsspec
import pytest


@pytest.fixture
def store() -> Any:
    """fsspec's memory file system, empty."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    return filesystem


def fill(store: Any, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        store.pipe_file(f"/{name}", content.encode() if isinstance(content, str) else content)


def texts(store: Any, folder: str) -> dict[str, str]:
    """Every file below a folder, except the journal."""
    return {
        path.removeprefix(f"/{folder}/"): store.cat_file(path).decode()
        for path in store.find(f"/{folder}")
        if "slimwhisper-journal" not in path
    }


def journal(store: Any, folder: str) -> list[dict[str, Any]]:
    """Every line of the journal's objects, in this store or another one."""
    lines: list[bytes] = []
    for path in store.find(f"{folder}/slimwhisper-journal"):
        if path.endswith(".jsonl"):
            lines += store.cat_file(path).splitlines()
    return [json.loads(line) for line in lines]


def tar_of(files: dict[str, bytes], mode: Any = "w") -> bytes:
    """An archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
