"""Downloads models and adapters from the Hugging Face hub once, then finds them in its cache."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.formats.ctranslate2 import CTRANSLATE2, CTRANSLATE2_TOKENS
from slimwhisper.checkpoint.formats.shards import WHOLE, index_of, shards
from slimwhisper.errors import CheckpointError

# files that a model may lack, and then has Whisper's own tokens and settings; after each, the files
# that models of other versions of the library have in its place
OPTIONAL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("generation_config.json", ()),
    ("preprocessor_config.json", ("processor_config.json",)),
    (
        "tokenizer.json",
        ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    ),
    ("tokenizer_config.json", ()),
    ("normalizer.json", ()),
)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def looks_like_hub_id(name: str) -> bool:
    """Whether a name looks like "organisation/model" and not like a path."""
    part = r"[A-Za-z0-9][\w.-]*"
    is_file = name.endswith((".pt", ".pth", ".bin", ".safetensors"))
    return re.fullmatch(f"{part}/{part}", name) is not None and ".." not in name and not is_file


@dataclass(frozen=True, slots=True)
class _Repository:
    name: str
    offline: bool

    def fetch(self, file: str, revision: str | None = None) -> Path | None:
        """None: the model has no such file or, offline, the cache does not have it."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        try:
            if self.offline:  # hf_hub_download may use the network nevertheless
                cached = try_to_load_from_cache(self.name, file, revision=revision)
                return Path(cached) if isinstance(cached, str) else None
            return Path(hf_hub_download(self.name, file, revision=revision))
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

    def require(self, file: str, revision: str | None = None) -> Path:
        """As `fetch`; raises CheckpointError if there is no such file."""
        if (path := self.fetch(file, revision)) is None:
            raise self.missing(file)
        return path

    def fetch_any(self, files: Sequence[tuple[str, Sequence[str]]], revision: str) -> None:
        """Fetch optional files; where the first of a pair is missing, its replacements."""
        for file, replacements in files:
            with suppress(CheckpointError):
                if self.fetch(file, revision) is None:
                    for replacement in replacements:
                        self.fetch(replacement, revision)

    def missing(self, file: str) -> CheckpointError:
        from huggingface_hub import constants

        cache = f"its cache ({constants.HF_HUB_CACHE}), and downloads are off"
        return self.failure(f"no {file} in {cache if self.offline else 'the model'}")

    def failure(self, reason: str) -> CheckpointError:
        what = f"cannot fetch {self.name!r} from the Hugging Face hub"
        return load_error(
            f"{what}: {' '.join(reason.split())} (or give a local folder or .pt file)"
        )


def _repository(name: str, local_files_only: bool) -> _Repository:
    from huggingface_hub import constants

    return _Repository(name, local_files_only or bool(constants.HF_HUB_OFFLINE))


def fetch_model(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub model's config and weights; downloads files that are not cached.

    All files have the revision of config.json. For a revision that is completely cached, only
    config.json is looked up on the network, and it loads without the network too.

    Raises CheckpointError if a download fails, or if a file is not cached and downloads are
    disabled by `local_files_only` or by HF_HUB_OFFLINE in the environment.
    """
    hub = _repository(repository, local_files_only)
    folder = hub.require("config.json").parent
    revision = folder.name
    hub.fetch_any(OPTIONAL, revision)
    weights = _fetch_first(hub, folder, [n for w in WHOLE for n in (w, index_of(w))])
    if weights is None:
        if _fetch_first(hub, folder, [CTRANSLATE2]) is None:
            raise hub.missing(" or ".join(WHOLE))
        if _fetch_first(hub, folder, CTRANSLATE2_TOKENS) is None:
            raise hub.missing(" or ".join(CTRANSLATE2_TOKENS))
    elif weights not in WHOLE:
        for shard in sorted(set(shards(folder / weights).values())):
            hub.require(shard, revision)
    return folder


def fetch_adapter(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub adapter's config and weights; as `fetch_model`."""
    hub = _repository(repository, local_files_only)
    folder = hub.require(ADAPTER_CONFIG).parent
    if _fetch_first(hub, folder, ADAPTER_WEIGHTS) is None:
        raise hub.missing(" or ".join(ADAPTER_WEIGHTS))
    return folder


def _fetch_first(hub: _Repository, folder: Path, names: Sequence[str]) -> str | None:
    """The first of these files in the folder, else the first in the repository."""
    for name in names:
        if (folder / name).is_file():
            return name
    return next((name for name in names if hub.fetch(name, folder.name) is not None), None)
