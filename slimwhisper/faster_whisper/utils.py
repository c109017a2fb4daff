"""The helpers of faster-whisper."""

import logging
import os

from slimwhisper.errors import OptionError
from slimwhisper.formats.load import locate_checkpoint
from slimwhisper.formats.names import available_models
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
    """Download a model, unless it is on this machine already.

    Args:
        size_or_id: A name of `available_models`, or an id of the Hugging Face hub.
        output_dir: This is not offered.
        local_files_only: Whether to download nothing.
        cache_dir: The folder for openai-whisper's models. Models of the hub stay in the hub's own
            cache.
        revision: This is not offered.
        use_auth_token: True or False has no effect; a token is not offered.

    Returns:
        The path of the model's file or folder, which `WhisperModel` takes.

    Raises:
        CheckpointError: When the model cannot be found or downloaded.
        OptionError: When an argument is not offered.
    """
    if output_dir is not None:
        raise OptionError("output_dir: models are kept in the cache; copy the returned path")
    check_hub_arguments(revision, use_auth_token)
    return os.fspath(locate_checkpoint(size_or_id, cache_dir, local_files_only))


def check_hub_arguments(revision: str | None, use_auth_token: str | bool | None) -> None:
    """Refuse what our downloads do not offer.

    Args:
        revision: The revision of a model.
        use_auth_token: The token of a user.

    Raises:
        OptionError: When a revision or a token is given.
    """
    if revision is not None:
        remedy = "download it with `hf download --revision`, and give the folder"
        raise OptionError(f"revision {revision!r}: {remedy}")
    if isinstance(use_auth_token, str):
        raise OptionError("use_auth_token: log in with `hf auth login`, or set HF_TOKEN")


def get_logger() -> logging.Logger:
    """Return the logger of faster-whisper, whose level programs set.

    Returns:
        The logger.
    """
    return logging.getLogger("faster_whisper")
