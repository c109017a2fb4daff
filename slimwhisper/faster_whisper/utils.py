"""faster-whisper's helpers."""

import logging
import os

from slimwhisper.checkpoint.load import available_models, locate_checkpoint
from slimwhisper.errors import OptionError
from slimwhisper.text import format_timestamp

__all__ = ["available_models", "download_model", "format_timestamp", "get_logger"]


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """Download a model, unless it is there, and return the path of its file or folder, which
    `WhisperModel` takes. cache_dir: of openai-whisper's models; those of the Hugging Face hub stay
    in its own cache. Raises CheckpointError, and OptionError for `output_dir` and `revision`.
    """
    if output_dir is not None:
        raise OptionError("output_dir: models are kept in the cache; copy the returned path")
    check_hub_arguments(revision, use_auth_token)
    return os.fspath(locate_checkpoint(size_or_id, cache_dir, local_files_only))


def check_hub_arguments(revision: str | None, use_auth_token: str | bool | None) -> None:
    """Raise OptionError for what our downloads do not offer."""
    if revision is not None:
        remedy = "download it with `hf download --revision`, and give the folder"
        raise OptionError(f"revision {revision!r}: {remedy}")
    if isinstance(use_auth_token, str):
        raise OptionError("use_auth_token: log in with `hf auth login`, or set HF_TOKEN")


def get_logger() -> logging.Logger:
    """faster-whisper's logger, whose level programs set."""
    return logging.getLogger("faster_whisper")
