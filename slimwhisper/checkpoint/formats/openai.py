"""Downloads OpenAI's models by name, verifies them, and reads .pt files."""

import hashlib
import logging
import os
from dataclasses import fields
from http.client import HTTPException
from os import PathLike
from pathlib import Path
from urllib.error import HTTPError

import torch

from slimwhisper.checkpoint.files import Contents, expand_user, load_error, read_pickle
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")


def default_download_root() -> Path:
    """openai-whisper's folder: ${XDG_CACHE_HOME:-~/.cache}/whisper."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "whisper"


def fetch_openai(
    name: str, url: str, download_root: str | PathLike[str] | None, local_files_only: bool
) -> Path:
    """The verified file of an official model, downloaded if it does not exist."""
    if download_root is not None:
        root = expand_user(download_root)
    else:
        try:
            root = default_download_root()
        except RuntimeError as error:  # from Path.home()
            raise load_error(f"model {name!r}: {error} Set XDG_CACHE_HOME.") from error
    digest, file_name = url.split("/")[-2:]
    file = root / file_name
    remedy = f"give a model file, or place {file_name} at {file}"
    try:
        exists = file.exists()
        if exists and not file.is_file():
            raise load_error(f"{file}: not a file; move it away, or choose another folder")
        if exists and _sha256(file) == digest:
            return file
    except OSError as error:
        raise load_error(f"{file}: cannot be read: {error.strerror}; {remedy}") from error
    if local_files_only:
        problem = f"has a wrong checksum in {root}" if exists else f"is not in {root}"
        raise load_error(f"model {name!r} {problem}, and downloads are off; {remedy}")
    if exists:
        logger.warning("%s has a wrong checksum; downloading it again", file)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # writes to a temporary file, verifies, renames: an interrupted run leaves nothing behind
        torch.hub.download_url_to_file(url, str(file), hash_prefix=digest, progress=True)
    except RuntimeError as error:  # how torch.hub reports a wrong checksum
        problem = f"the download from {url} has a wrong checksum and was deleted"
        raise load_error(f"model {name!r}: {problem}; try again, or {remedy}") from error
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
            reason: object = error  # includes the status code
        else:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        text = f"{reason}" or type(error).__name__
        raise load_error(f"cannot download {name!r} to {file}: {text}; {remedy}") from error
    return file


def download(url: str, root: str, in_memory: bool) -> bytes | str:
    """As `whisper._download`: the path of a model's file, or its content."""
    file = fetch_openai(Path(url).stem, url, root, local_files_only=False)
    return file.read_bytes() if in_memory else str(file)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def detect(path: Path) -> bool:
    """Whether it is a file; `read` says what is wrong with one in no other format."""
    return path.is_file()


def read(file: Path) -> Contents:
    """{"dims", "model_state_dict"}: name -> tensor, matrices [out, in], mapped if possible; and the
    settings that stand beside them, which openai-whisper does not read: "audio_window", and
    "generation_config", as a folder's file of this name.
    """
    missing = "no 'dims' and 'model_state_dict'"
    foreign = f"{file}: not an OpenAI Whisper checkpoint ({missing}); give one, or a folder"
    content = read_pickle(file)
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise load_error(foreign)
    dims, state = content["dims"], content["model_state_dict"]
    names = [f.name for f in fields(Dims)]
    if not isinstance(dims, dict) or not isinstance(state, dict):
        raise load_error(foreign)
    if set(dims) != set(names) or not all(type(v) is int for v in dims.values()):
        raise load_error(f"{file}: its 'dims' are not the ten whole numbers {', '.join(names)}")
    kept = content.get("generation_config", {})
    if not isinstance(kept, dict):
        raise load_error(f"{file}: its 'generation_config' is no dictionary; leave it out")
    return Contents(Dims(**dims), state, {"audio_window": content.get("audio_window")} | kept)
