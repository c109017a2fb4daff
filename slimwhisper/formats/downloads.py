"""Downloads models and adapters once: OpenAI's files by name, and the Hugging Face hub's by id."""

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from os import PathLike
from pathlib import Path
from urllib.error import HTTPError

import torch

from slimwhisper.checkpoint.files import expand_user, load_error
from slimwhisper.checkpoint.hugging_face import WHOLE, index_of, shards
from slimwhisper.errors import CheckpointError
from slimwhisper.formats.foreign import CTRANSLATE2, CTRANSLATE2_TOKENS

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


# files that a model may lack, and then has Whisper's own tokens and settings; after each, the files
# that models of other versions of the library have in its place
OPTIONAL: dict[str, tuple[str, ...]] = {
    "generation_config.json": (),
    "preprocessor_config.json": ("processor_config.json",),
    "tokenizer.json": ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    "tokenizer_config.json": (),
    "normalizer.json": (),
}
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def looks_like_hub_id(name: str) -> bool:
    """Whether a name looks like "organisation/model" and not like a path."""
    part = r"[A-Za-z0-9][\w.-]*"
    is_file = name.endswith((".pt", ".pth", ".bin", ".safetensors"))
    return re.fullmatch(f"{part}/{part}", name) is not None and ".." not in name and not is_file


class _Repository:
    """A repository's files of one revision, in the hub's cache."""

    def __init__(self, name: str, local_files_only: bool, config: str) -> None:
        """config: the file that the others are beside. Raises CheckpointError if it is missing."""
        from huggingface_hub import constants

        self.name, self.offline = name, local_files_only or bool(constants.HF_HUB_OFFLINE)
        self.revision: str | None = None
        path = self.fetch(config)
        if path is None:
            raise self.missing(config)
        self.folder, self.revision = path.parent, path.parent.name

    def fetch(self, file: str) -> Path | None:
        """None: the model has no such file or, offline, the cache does not have it."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        try:
            if self.offline:  # hf_hub_download may use the network nevertheless
                cached = try_to_load_from_cache(self.name, file, revision=self.revision)
                return Path(cached) if isinstance(cached, str) else None
            return Path(hf_hub_download(self.name, file, revision=self.revision))
        except errors.GatedRepoError as error:
            reason = "request access on huggingface.co, then run `hf auth login`"
            raise self.failure(reason) from error
        except errors.RepositoryNotFoundError as error:
            reason = "no such model there (or it is private), and no such local file or folder"
            raise self.failure(reason) from error
        except errors.EntryNotFoundError as error:
            # Also raised if the network fails and the file is not cached; the cause says why.
            if not isinstance(error, errors.LocalEntryNotFoundError):
                return None
            raise self.failure(f"{error.__cause__ or error}") from error
        except Exception as error:  # the hub's HTTP errors have no base class of their own
            raise self.failure(f"{error}" or type(error).__name__) from error

    def first(self, files: Sequence[str]) -> str | None:
        """The first of these files in the folder, else the first in the repository."""
        for name in files:
            if (self.folder / name).is_file():
                return name
        return next((name for name in files if self.fetch(name) is not None), None)

    def require(self, *files: str) -> None:
        """Fetch one of these files. Raises CheckpointError if there is none."""
        if self.first(files) is None:
            raise self.missing(*files)

    def missing(self, *files: str) -> CheckpointError:
        from huggingface_hub import constants

        cache = f"its cache ({constants.HF_HUB_CACHE}), and downloads are off"
        return self.failure(f"no {' or '.join(files)} in {cache if self.offline else 'the model'}")

    def failure(self, reason: str) -> CheckpointError:
        what = f"cannot fetch {self.name!r} from the Hugging Face hub"
        reason = " ".join(reason.split())
        return load_error(f"{what}: {reason} (or give a local folder or .pt file)")


def fetch_model(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub model's config and weights; downloads files that are not cached.

    All files have the revision of config.json. For a revision that is completely cached, only
    config.json is looked up on the network, and it loads without the network too.

    Raises CheckpointError if a download fails, or if a file is not cached and downloads are
    disabled by `local_files_only` or by HF_HUB_OFFLINE in the environment.
    """
    hub = _Repository(repository, local_files_only, "config.json")
    for file, replacements in OPTIONAL.items():
        with suppress(CheckpointError):
            if hub.fetch(file) is None:
                for replacement in replacements:
                    hub.fetch(replacement)
    weights = hub.first([name for whole in WHOLE for name in (whole, index_of(whole))])
    if weights is None:
        if hub.first([CTRANSLATE2]) is None:
            raise hub.missing(*WHOLE)
        hub.require(*CTRANSLATE2_TOKENS)
    elif weights not in WHOLE:
        for shard in sorted(set(shards(hub.folder / weights).values())):
            hub.require(shard)
    return hub.folder


def adapter_folder(adapter: str | PathLike[str], local_files_only: bool) -> Path:
    """The local folder of an adapter; downloads the files of a hub id, as `fetch_model`.

    Raises CheckpointError.
    """
    label = os.fspath(adapter)
    path = expand_user(label)
    if label and path.is_dir():
        return path
    if path.is_file():
        raise load_error(f"{label}: is a file; give the folder that has {ADAPTER_CONFIG}")
    if not isinstance(adapter, str) or not looks_like_hub_id(label):
        what = "no such folder; give a PEFT adapter's folder or hub id"
        raise load_error(f"adapter {label!r}: {what}")
    hub = _Repository(label, local_files_only, ADAPTER_CONFIG)
    hub.require(*ADAPTER_WEIGHTS)
    return hub.folder
