"""Writes a Hugging Face folder that `transformers` loads, with tokenizer and settings.

The settings follow from the constants of Whisper's own code, the tokenizer from OpenAI's files.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from torch import Tensor

from slimwhisper.checkpoint.files import OUTPUT, inside, load_error, read_json
from slimwhisper.checkpoint.formats.hugging_face import (
    DIMENSIONS,
    LITE_WHISPER,
    RANKS,
    hugging_face_name,
)
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.settings import head_pairs
from slimwhisper.checkpoint.vocabulary import byte_level_tokenizer
from slimwhisper.option_group import TASKS, ModelFacts
from slimwhisper.options import changed_settings
from slimwhisper.tokens.encoding import Tokenizer
from slimwhisper.tokens.vocabulary import openai_tokenizer, spelled, suppressed, text_tokens
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE, Dims

END, START = "<|endoftext|>", "<|startoftranscript|>"
NO_TIMESTAMPS, FIRST_TIMESTAMP = "<|notimestamps|>", "<|0.00|>"
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
ENDS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens whose merge makes this one; None for a single byte, or if none does.

    Byte-pair encoding merges the neighbours of lowest rank first, so the last merge that leads to
    the token is found by encoding it with the tokens of lower rank.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pair_ranks = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= ranks[token]:
            return None
        i = pair_ranks.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def tokenizer_files(tokenizer: Tokenizer, n_text_ctx: int) -> dict[str, str]:
    """File name -> content: the tables, in the formats that old and new `transformers` read."""
    texts = text_tokens(tokenizer)
    ranks = {token: i for i, token in enumerate(texts)}
    pairs = (merge_of(token, ranks) for token in texts)
    merges = [(spelled(a), spelled(b)) for a, b in filter(None, pairs)]
    special = tokenizer.special_tokens  # in the order of their ids
    vocabulary = {spelled(token): i for i, token in enumerate(texts)} | {END: special[END]}
    controls = [token for token, i in special.items() if i < special[FIRST_TIMESTAMP]]
    fast = byte_level_tokenizer(vocabulary, merges, {t: t in controls for t in special})
    fast.post_processor = processors.TemplateProcessing(
        single=f"{START} {NO_TIMESTAMPS} $A {END}",
        pair=f"{START} {NO_TIMESTAMPS} $A $B:1 {END}",
        special_tokens=[(token, special[token]) for token in (START, NO_TIMESTAMPS, END)],
    )
    added = {i: PLAIN | {"content": t, "special": t in controls} for t, i in special.items()}
    configuration = ENDS | {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": controls,
        "clean_up_tokenization_spaces": False,  # whisper's texts are not cleaned up
        "errors": "replace",
        "model_max_length": n_text_ctx,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "tokenizer_class": "WhisperTokenizer",
    }
    spellings = files("whisper.normalizers").joinpath("english.json").read_text(encoding="utf-8")
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]),
        "added_tokens.json": _pretty({t: i for t, i in special.items() if t != END}),
        "normalizer.json": spellings,
        "special_tokens_map.json": _pretty(ENDS | {"additional_special_tokens": controls}),
        "tokenizer_config.json": _pretty(configuration),
        "tokenizer.json": fast.to_str(),
    }


def _pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


FFT_SAMPLES = 400  # of a spectrogram's window


def model_settings(dims: Dims, tokenizer: Tokenizer, dtype: str, tied: bool) -> dict[str, Any]:
    """config.json. dtype: such as "float16"."""
    sizes = {key: getattr(dims, field) for field, key in DIMENSIONS.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot)
    return {
        **sizes,
        **ends,
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "decoder_start_token_id": tokenizer.sot,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "is_encoder_decoder": True,
        "num_hidden_layers": dims.n_audio_layer,
        "scale_embedding": False,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,  # new versions of transformers know this older name too
        "use_cache": True,
    }


def own_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a model's generation_config.json has that Whisper's own has not."""
    settings, heads = checkpoint.settings, checkpoint.alignment_heads
    own: dict[str, Any] = {} if heads is None else {"alignment_heads": head_pairs(heads)}
    facts = ModelFacts(checkpoint.name, checkpoint.dims, checkpoint.tokens, settings)
    for row in changed_settings(facts):
        value = getattr(settings, row.name, row.value)
        own[row.name] = list(value) if isinstance(value, tuple) else value
    own.pop("forced_decoder_ids", None)  # what is followed of them is the language and the task
    return own


def generation_settings(dims: Dims, tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json: the rules of `whisper.decode` with its defaults."""
    special = tokenizer.special_tokens
    multilingual = tokenizer.language is not None
    never, never_first = suppressed(tokenizer)
    settings: dict[str, Any] = {
        "begin_suppress_tokens": list(never_first),
        "bos_token_id": tokenizer.eot,
        "decoder_start_token_id": tokenizer.sot,
        "eos_token_id": tokenizer.eot,
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,  # 1 s, in steps of 20 ms
        "max_length": dims.n_text_ctx,
        "no_timestamps_token_id": special[NO_TIMESTAMPS],
        "pad_token_id": tokenizer.eot,
        "prev_sot_token_id": tokenizer.sot_prev,
        "return_timestamps": False,
        "suppress_tokens": list(never),
    }
    if multilingual:
        codes = tokenizer.all_language_codes
        settings["lang_to_id"] = {f"<|{code}|>": special[f"<|{code}|>"] for code in codes}
        settings["task_to_id"] = {task: getattr(tokenizer, task) for task in TASKS}
    assert special[FIRST_TIMESTAMP] == special[NO_TIMESTAMPS] + 1  # transformers relies on it
    return settings


def feature_settings(dims: Dims) -> dict[str, Any]:
    """preprocessor_config.json: Whisper's spectrogram."""
    frames = 2 * dims.n_audio_ctx  # the encoder halves them
    samples = frames * HOP_SAMPLES
    return {
        "chunk_length": samples // SAMPLE_RATE,  # seconds
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": dims.n_mels,
        "hop_length": HOP_SAMPLES,
        "n_fft": FFT_SAMPLES,
        "n_samples": samples,
        "nb_max_frames": frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": SAMPLE_RATE,
    }


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
    named = {hugging_face_name(name): tensor.contiguous() for name, tensor in state.items()}
    save_torch_state_dict(named, folder, max_shard_size=SHARD_BYTES, metadata={"format": "pt"})
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
