"""What a Hugging Face folder has that an OpenAI .pt file cannot hold."""

from typing import Any

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import read_json_of
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.validate import OUTPUT
from slimwhisper.commands.conversion.settings import generation_settings
from slimwhisper.tokens.openai import openai_tokenizer

SETTINGS = (
    *("alignment_heads", "begin_suppress_tokens", "forced_decoder_ids", "is_multilingual"),
    *("lang_to_id", "language", "max_initial_timestamp_index", "max_length"),
    *("no_timestamps_token_id", "return_timestamps", "suppress_tokens", "task", "task_to_id"),
)


def refuse_what_is_lost(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if the words would differ without what a .pt file cannot hold."""
    name = checkpoint.name
    if OUTPUT in checkpoint.state:
        raise problem(
            f"{name}: its output matrix, {OUTPUT}, is not the token embedding, and a .pt file has "
            "one matrix for both; keep the folder"
        )
    if not checkpoint.tokens.is_whispers:
        raise problem(
            f"{name}: its tokenizer is not OpenAI's, and a .pt file has no place for one; keep "
            "the folder"
        )


def settings_left_behind(checkpoint: Checkpoint) -> list[str]:
    """The generation settings of its folder that are not Whisper's own, by name."""
    folder = checkpoint.folder
    tokenizer = openai_tokenizer(checkpoint.dims)
    content = None if folder is None else read_json_of(folder, "generation_config.json")
    if tokenizer is None or content is None:
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
