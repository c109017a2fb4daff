"""What a Hugging Face folder has that an OpenAI .pt file cannot hold."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.openai_tokens import full_table, is_openai_table, openai_tokenizer
from slimwhisper.checkpoint.validate import OUTPUT
from slimwhisper.commands.conversion.settings import generation_settings

SETTINGS = (
    *("alignment_heads", "begin_suppress_tokens", "forced_decoder_ids", "is_multilingual"),
    *("lang_to_id", "language", "max_initial_timestamp_index", "max_length"),
    *("no_timestamps_token_id", "return_timestamps", "suppress_tokens", "task", "task_to_id"),
)


def refuse_what_is_lost(checkpoint: Checkpoint, folder: Path | None) -> None:
    """Raise CheckpointError if the words would differ without what a .pt file cannot hold.

    folder: the Hugging Face folder that the checkpoint was read from; None: another format.
    """
    name = checkpoint.name
    if OUTPUT in checkpoint.state:
        raise problem(
            f"{name}: its output matrix, {OUTPUT}, is not the token embedding, and a .pt file has "
            "one matrix for both; keep the folder"
        )
    if not has_openai_tokens(folder, checkpoint.dims.n_vocab):
        raise problem(
            f"{name}: its tokenizer is not OpenAI's, and a .pt file has no place for one; keep "
            "the folder"
        )


def has_openai_tokens(folder: Path | None, n_vocab: int) -> bool:
    """Whether a model's tokens are OpenAI's: its folder's, or by their number if it has none."""
    tokenizer = openai_tokenizer(n_vocab)
    tokens = None if folder is None else _tokens(folder)
    if tokenizer is None or tokens is None:
        return tokenizer is not None
    return is_openai_table(tokens, full_table(tokenizer))


def settings_left_behind(checkpoint: Checkpoint, folder: Path | None) -> list[str]:
    """The generation settings of the folder that are not Whisper's own, by name."""
    tokenizer = openai_tokenizer(checkpoint.dims.n_vocab)
    content = {} if folder is None else _read(folder / "generation_config.json")
    if tokenizer is None or not isinstance(content, dict):
        return []
    usual = generation_settings(checkpoint.dims, tokenizer, None)
    usual["forced_decoder_ids"] = [[1, None], [2, tokenizer.transcribe]]  # old files' default
    usual["task"] = "transcribe"
    return [
        key
        for key in SETTINGS
        if content.get(key) and _plain(content[key]) != _plain(usual.get(key))
    ]


def _plain(value: Any) -> Any:
    """Lists of numbers in any order."""
    numbers = isinstance(value, list) and all(isinstance(v, int) for v in value)
    return sorted(value) if numbers else value


def _tokens(folder: Path) -> Mapping[str, int] | None:
    """token -> id of the folder's tokenizer; None: it has none."""
    fast = _read(folder / "tokenizer.json")
    try:
        if fast is not None:
            added = {token["content"]: token["id"] for token in fast["added_tokens"]}
            return {**fast["model"]["vocab"], **added}
        base, more = _read(folder / "vocab.json"), _read(folder / "added_tokens.json")
        return None if base is None else {**base, **(more or {})}
    except (KeyError, TypeError) as error:
        raise problem(f"{folder}: its tokenizer cannot be read; copy it again") from error


def _read(file: Path) -> Any:
    """A JSON file's content; None if there is no such file."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise problem(f"{file}: cannot be read as JSON; copy it again") from error
