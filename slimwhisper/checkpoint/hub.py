"""Downloads models and adapters from the Hugging Face hub once, then finds them in its cache."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slimwhisper.checkpoint.files import load_error
from slimwhisper.checkpoint.formats.ctranslate2 import CTRANSLATE2, CTRANSLATE2_TOKENS
from slimwhisper.checkpoint.formats.hugging_face import WHOLE, index_of, shards
from slimwhisper.errors import CheckpointError

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
        return load_error(
            f"{what}: {' '.join(reason.split())} (or give a local folder or .pt file)"
        )


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


def fetch_adapter(repository: str, local_files_only: bool) -> Path:
    """The local folder of a hub adapter's config and weights; as `fetch_model`."""
    hub = _Repository(repository, local_files_only, ADAPTER_CONFIG)
    hub.require(*ADAPTER_WEIGHTS)
    return hub.folder
