"""Writes a Hugging Face folder that `transformers` loads, with tokenizer and settings."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.files import inside, read_json
from slimwhisper.checkpoint.formats.hugging_face import hugging_face_name
from slimwhisper.checkpoint.formats.lite_whisper import LITE_WHISPER, RANKS
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.validate import OUTPUT
from slimwhisper.commands.conversion.settings import (
    feature_settings,
    generation_settings,
    model_settings,
    own_settings,
)
from slimwhisper.commands.conversion.tokenizer_files import tokenizer_files
from slimwhisper.tokens.openai import openai_tokenizer
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE

FRAMES_PER_SECOND = SAMPLE_RATE // (2 * HOP_SAMPLES)  # of the encoder
FOLDER_FILES = (  # settings and tokenizer, beside config.json and the weights
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "normalizer.json"),
    *("vocab.json", "merges.txt", "added_tokens.json"),
)
SHARD_BYTES = 5_000_000_000  # of weights, at most, in one file


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the checkpoint's weights, settings and tokenizer to an empty folder.

    Settings and tokenizer are copied from the Hugging Face folder that it was read from; of other
    formats they are Whisper's own. Weights beyond SHARD_BYTES go to several files and an index.
    Raises CheckpointError for a model whose tokens, or whose window, a folder cannot name.
    """
    from huggingface_hub import save_torch_state_dict

    state = checkpoint.state
    source = checkpoint.folder
    contents = _openai_contents(checkpoint) if source is None else _copied(checkpoint, source)
    save_torch_state_dict(
        {hugging_face_name(name): tensor.contiguous() for name, tensor in state.items()},
        folder,
        max_shard_size=SHARD_BYTES,
        metadata={"format": "pt"},
    )
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    mode = (folder / "config.json").stat().st_mode  # safetensors hides its files from others
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def _openai_contents(checkpoint: Checkpoint) -> dict[str, str]:
    """File name -> content: OpenAI's tokenizer, and Whisper's settings."""
    dims = checkpoint.dims
    tokenizer = openai_tokenizer(dims)
    if tokenizer is None:
        what = f"a vocabulary of {dims.n_vocab} tokens is not OpenAI's, and a file has no tokenizer"
        raise load_error(f"{checkpoint.name}: {what}; give the folder that it was made from")
    if dims.n_audio_ctx % FRAMES_PER_SECOND:
        what = f"its window of {dims.n_audio_ctx} frames of 20 ms is not a whole number of seconds"
        raise load_error(f"{checkpoint.name}: {what}; write a .pt file")
    dtype, tied = _dtype(checkpoint.state), OUTPUT not in checkpoint.state
    settings = {
        "config.json": model_settings(dims, tokenizer, dtype, tied),
        "generation_config.json": generation_settings(dims, tokenizer) | own_settings(checkpoint),
        "preprocessor_config.json": feature_settings(dims),
    }
    contents = {name: json.dumps(content, indent=2) + "\n" for name, content in settings.items()}
    return contents | tokenizer_files(tokenizer, dims.n_text_ctx)


def _copied(checkpoint: Checkpoint, source: Path) -> dict[str, str]:
    """File name -> content: the source's, with config.json adapted to the weights.

    If its tokens are OpenAI's, missing tokenizer files, as in some downloads, are added.
    """
    config = read_json(inside(source, "config.json"))
    config["dtype" if "dtype" in config else "torch_dtype"] = _dtype(checkpoint.state)
    config["tie_word_embeddings"] = OUTPUT not in checkpoint.state
    config["vocab_size"] = checkpoint.dims.n_vocab
    if config["model_type"] == LITE_WHISPER:  # its factors are multiplied: it is Whisper's
        config |= {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
        for key in (RANKS, "auto_map"):
            config.pop(key, None)
    files = [inside(source, name) for name in FOLDER_FILES]
    contents = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    dims = checkpoint.dims
    tokenizer = openai_tokenizer(dims)
    if tokenizer is not None and checkpoint.tokens.is_whispers:
        contents = tokenizer_files(tokenizer, dims.n_text_ctx) | contents
    return contents | {"config.json": json.dumps(config, indent=2) + "\n"}


def _dtype(state: Mapping[str, Tensor]) -> str:
    """The dtype that can store every weight; float32 for both float16 and bfloat16."""
    kinds = {tensor.dtype for tensor in state.values()}
    if kinds >= {torch.float16, torch.bfloat16}:
        kinds.add(torch.float32)
    return str(max(kinds, key=lambda kind: kind.itemsize)).removeprefix("torch.")
