"""Converts a checkpoint to the formats of other projects: Hugging Face, CTranslate2, ggml.

Needs the packages of those projects: `pip install transformers ctranslate2`.
"""

import base64
import shutil
import struct
import sys
import tempfile
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from whisper.audio import mel_filters

from slimwhisper.checkpoint.formats.hugging_face import openai_name
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.tokens.vocabulary import get_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer
    from whisper.tokenizer import Tokenizer as WhisperTokenizer

GGML_MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1  # ggml's types


def drop_broken_torchaudio() -> None:
    """Make transformers take a torchaudio that does not fit this torch for missing; it needs none
    here, and fails to import with one that does not load.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]


def save_hugging_face(
    checkpoint: Checkpoint, folder: Path, dtype: torch.dtype = torch.float32
) -> Path:
    """A folder as `save_pretrained` writes it, tokenizer and feature extractor included."""
    drop_broken_torchaudio()
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )
    from transformers.utils import logging
    from whisper.tokenizer import get_tokenizer

    logging.disable_progress_bar()
    dims, vocabulary = checkpoint.dims, get_vocabulary(checkpoint.dims)
    config = WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_text_state,
        encoder_layers=dims.n_audio_layer,
        decoder_layers=dims.n_text_layer,
        encoder_attention_heads=dims.n_audio_head,
        decoder_attention_heads=dims.n_text_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_ffn_dim=4 * dims.n_text_state,
        max_source_positions=dims.n_audio_ctx,
        max_target_positions=dims.n_text_ctx,
        decoder_start_token_id=vocabulary.sot,
        bos_token_id=vocabulary.eot,
        eos_token_id=vocabulary.eot,
        pad_token_id=vocabulary.eot,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    ours = {name: checkpoint.state.get(openai_name(name)) for name in model.state_dict()}
    state = {name: tensor.float() for name, tensor in ours.items() if tensor is not None}
    absent = ours.keys() - state.keys() - {"proj_out.weight"}
    assert not absent, absent
    model.load_state_dict(state, strict=False)
    model.to(dtype)
    tokenizer = get_tokenizer(dims.is_multilingual, num_languages=dims.num_languages)
    special = tokenizer.special_tokens
    languages = {f"<|{code}|>": special[f"<|{code}|>"] for code in tokenizer.all_language_codes}
    model.generation_config = GenerationConfig(
        decoder_start_token_id=vocabulary.sot,
        bos_token_id=vocabulary.eot,
        eos_token_id=vocabulary.eot,
        pad_token_id=vocabulary.eot,
        no_timestamps_token_id=special["<|notimestamps|>"],
        prev_sot_token_id=special["<|startofprev|>"],
        is_multilingual=dims.is_multilingual,
        lang_to_id=languages,
        task_to_id={"transcribe": special["<|transcribe|>"], "translate": special["<|translate|>"]},
        max_length=dims.n_text_ctx,
    )
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=dims.n_mels).save_pretrained(folder)
    fast = fast_tokenizer(tokenizer)
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|endoftext|>").save_pretrained(
        folder
    )
    return folder


def fast_tokenizer(tokenizer: "WhisperTokenizer") -> "FastTokenizer":
    """openai-whisper's tokenizer as a tokenizer of Hugging Face's `tokenizers`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks: dict[bytes, int] = tokenizer.encoding._mergeable_ranks
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranks.tiktoken"
        lines = (f"{base64.b64encode(t).decode()} {rank}\n" for t, rank in ranks.items() if t)
        path.write_text("".join(lines))
        converter = TikTokenConverter(str(path), tokenizer.encoding._pat_str)
        vocabulary, merges = converter.extract_vocab_merges_from_model(str(path))
    if b"" in ranks:  # an unused id
        vocabulary[""] = ranks[b""]
    made = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = tokenizer.special_tokens
    made.add_special_tokens(sorted(special, key=special.__getitem__))
    return made


def save_ctranslate2(hugging_face: Path, folder: Path) -> Path:
    """What faster-whisper reads, in float32; it converts it to int8 on loading."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(hugging_face)).convert(str(folder), force=True)
    shutil.copy(hugging_face / "tokenizer.json", folder)
    shutil.copy(hugging_face / "preprocessor_config.json", folder)
    return folder


def save_ggml(checkpoint: Checkpoint, path: Path) -> Path:
    """What whisper.cpp reads: a header, filters, tokens, then the weights in float16."""
    from whisper.tokenizer import get_tokenizer

    dims = checkpoint.dims
    tokenizer = get_tokenizer(dims.is_multilingual, num_languages=dims.num_languages)
    tokens = sorted(tokenizer.encoding._mergeable_ranks, key=tokenizer.encoding.encode_single_token)
    filters = mel_filters("cpu", dims.n_mels).numpy()
    numbers = (
        *(dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head),
        *(dims.n_audio_layer, dims.n_text_ctx, dims.n_text_state, dims.n_text_head),
        *(dims.n_text_layer, dims.n_mels, FLOAT16),
    )
    with path.open("wb") as file:
        file.write(struct.pack("<12i", GGML_MAGIC, *numbers))
        file.write(struct.pack("<2i", *filters.shape))
        file.write(filters.astype("<f4").tobytes())
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, tensor in checkpoint.state.items():
            if not (name.endswith("key.bias") and not tensor.any()):
                _write_ggml(file, name, tensor)
    return path


def _write_ggml(file: IO[bytes], name: str, tensor: Tensor) -> None:
    """One weight: matrices in float16, the rest in float32; convolution biases [n] as [n, 1]."""
    data = tensor.squeeze().numpy().astype(np.float32)
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        data = data.reshape(-1, 1)
    plain = data.ndim < 2 or "positional_embedding" in name or name.endswith("conv1.bias")
    kind = FLOAT32 if plain or name.endswith("conv2.bias") else FLOAT16
    text = name.encode()
    file.write(struct.pack("<3i", data.ndim, len(text), kind))
    file.write(struct.pack(f"<{data.ndim}i", *reversed(data.shape)))
    file.write(text)
    file.write(data.astype("<f2" if kind == FLOAT16 else "<f4").tobytes())


def convert(
    checkpoint: Checkpoint,
    folder: Path,
    formats: Collection[str],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write "openai" (openai.pt), "hugging_face", "ctranslate2" (folders), "ggml" (ggml.bin).

    dtype: of all weights but ggml's.
    """
    if "openai" in formats:
        state = {name: tensor.to(dtype) for name, tensor in checkpoint.state.items()}
        content = {"dims": asdict(checkpoint.dims), "model_state_dict": state}
        torch.save(content, folder / "openai.pt")
    asked = "hugging_face" in formats or "ctranslate2" in formats
    if asked and not (folder / "hugging_face").exists():  # large, and both need it
        save_hugging_face(checkpoint, folder / "hugging_face", dtype)
    if "ctranslate2" in formats:
        save_ctranslate2(folder / "hugging_face", folder / "ctranslate2")
    if "ggml" in formats:
        save_ggml(checkpoint, folder / "ggml.bin")
