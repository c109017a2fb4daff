"""Reads Hugging Face checkpoints: folders with config.json and weights."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.files import Contents, JSONFields, inside, read_json
from slimwhisper.checkpoint.formats.lite_whisper import LITE_WHISPER, check_ranks
from slimwhisper.checkpoint.formats.shards import read_weights
from slimwhisper.checkpoint.validate import EMBEDDING, OUTPUT
from slimwhisper.types import Dims

logger = logging.getLogger("slimwhisper")


DIMENSIONS = {  # field of `Dims`: name in config.json
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
_TENSOR_NAMES = (  # Hugging Face's part of a tensor's name, OpenAI's
    (".layers.", ".blocks."),
    (".self_attn_layer_norm.", ".attn_ln."),
    (".encoder_attn_layer_norm.", ".cross_attn_ln."),
    (".final_layer_norm.", ".mlp_ln."),
    (".self_attn.", ".attn."),
    (".encoder_attn.", ".cross_attn."),
    (".q_proj.", ".query."),
    (".k_proj.", ".key."),
    (".v_proj.", ".value."),
    (".out_proj.", ".out."),
    (".fc1.", ".mlp.0."),
    (".fc2.", ".mlp.2."),
    ("encoder.layer_norm.", "encoder.ln_post."),
    ("decoder.layer_norm.", "decoder.ln."),
    (".embed_tokens.", ".token_embedding."),
    (".embed_positions.weight", ".positional_embedding"),
)


def openai_name(name: str) -> str:
    """Hugging Face's tensor name -> OpenAI's."""
    name = name.removeprefix("model.")
    for hf_part, openai_part in _TENSOR_NAMES:
        name = name.replace(hf_part, openai_part)
    return name


def hugging_face_name(name: str) -> str:
    """OpenAI's tensor name -> Hugging Face's."""
    for hf_part, openai_part in _TENSOR_NAMES:
        name = name.replace(openai_part, hf_part)
    return name if name == OUTPUT else f"model.{name}"


def detect(path: Path) -> bool:
    """Whether it is a folder, or its weights."""
    return path.is_dir() or (path.suffix == ".safetensors" and path.is_file())


def read(folder: Path) -> Contents:
    """config.json and the weights: OpenAI's name -> tensor, memory-mapped if possible.

    Shapes as in `validate.expected_shapes`: matrices [out, in]. A matrix for the logits that is not
    the token embedding is `proj_out.weight`, [V, d]. LiteASR's factors stay as they are.
    """
    if not folder.is_dir():
        what = "give the folder with its config.json, not the .safetensors file"
        raise load_error(f"{folder}: {what}")
    config = inside(folder, "config.json")
    if not config.is_file():
        raise load_error(f"{folder}: no config.json; give a Hugging Face folder or a .pt file")
    content = read_json(config)
    dims = _read_dims(config, content)
    state: dict[str, Tensor] = {}
    for file, name, tensor in read_weights(folder):
        openai = openai_name(name)
        if openai in state:
            raise load_error(f"{file}: has {openai} twice, also as {name}; save it again")
        state[openai] = tensor
    tied = content.get("tie_word_embeddings", True) is not False
    if OUTPUT not in state and not tied:
        reason = "although config.json says tie_word_embeddings: false"
        raise load_error(f"{folder}: has no {OUTPUT}, {reason}; download the model again")
    tie_output(state)
    if OUTPUT in state and tied:
        text = "%s: %s is used for the logits; set tie_word_embeddings to false in config.json"
        logger.warning(text, folder, f"{OUTPUT} differs from the token embedding and")
    check_ranks(JSONFields(config, content), dims.n_audio_layer, state)
    return Contents(dims, state, folder=folder)


def tie_output(state: dict[str, Tensor]) -> None:
    """Keep one of `proj_out.weight` and the token embedding, both [V, d], where they are equal.

    Files have either or both; transformers also uses the one that exists, whatever config.json
    says.
    """
    output = state.get(OUTPUT)
    if output is not None and _equal(output, state.setdefault(EMBEDDING, output)):
        del state[OUTPUT]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors [...] have the same values, in whatever dtypes."""
    if a is b or a.shape != b.shape:
        return a is b
    wide = torch.promote_types(a.dtype, b.dtype)
    return torch.equal(a.to(wide), b.to(wide))


def _read_dims(config: Path, content: Mapping[str, Any]) -> Dims:
    kind = content.get("model_type")
    if kind not in ("whisper", LITE_WHISPER):
        raise load_error(f"{config}: model_type is {kind!r}, not 'whisper'; give a Whisper model")
    for key, whispers in (("activation_function", "gelu"), ("scale_embedding", False)):
        if content.get(key, whispers) != whispers:
            found = f"{key} is {content[key]!r}"
            raise load_error(f"{config}: {found}, but only Whisper's {whispers!r} is supported")
    fields = JSONFields(config, content)
    values = {field: fields.whole(key, 1) for field, key in DIMENSIONS.items()}
    for field, value in values.items():
        if value is None:
            raise fields.invalid(DIMENSIONS[field], "not a positive integer")
    return Dims(**{field: value for field, value in values.items() if value is not None})
