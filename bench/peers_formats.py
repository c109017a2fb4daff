"""Weights in the formats of the projects that `peers.py` compares."""

import shutil
import struct
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from whisper.audio import mel_filters

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.conversion.hf_folder import write_folder

GGML_MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1  # ggml's types


def convert(checkpoint: Checkpoint, folder: Path, kind: str, dtype: torch.dtype) -> None:
    """Write "openai" (openai.pt), "hugging_face", "ctranslate2" (folders) or "ggml" (ggml.bin).

    dtype: of all weights but ggml's.
    """
    state = {name: tensor.to(dtype) for name, tensor in checkpoint.state.items()}
    hugging_face = folder / "hugging_face"
    if kind == "openai":
        content = {"dims": asdict(checkpoint.dims), "model_state_dict": state}
        torch.save(content, folder / "openai.pt")
    elif kind == "ggml":
        save_ggml(checkpoint, folder / "ggml.bin")
    elif not hugging_face.exists():  # CTranslate2 converts it
        hugging_face.mkdir()
        write_folder(replace(checkpoint, state=state), hugging_face)
    if kind == "ctranslate2":
        drop_broken_torchaudio()
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(hugging_face)).convert(str(folder / kind), force=True)
        for name in ("tokenizer.json", "preprocessor_config.json"):
            shutil.copy(hugging_face / name, folder / kind)


def drop_broken_torchaudio() -> None:
    """Make transformers take a torchaudio that does not fit this torch for missing; it needs none
    here, and fails to import with one that does not load.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]


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
