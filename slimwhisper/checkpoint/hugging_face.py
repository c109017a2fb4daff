"""Reads Hugging Face checkpoints: folders with config.json and weights, in a file or in shards."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import (
    EMBEDDING,
    OUTPUT,
    Contents,
    JSONFields,
    inside,
    load_error,
    read_tensors,
)
from slimwhisper.types import Dims

WHOLE = ("model.safetensors", "pytorch_model.bin")  # the first that exists is read
_AGAIN = "download the model again"


def index_of(weights: str) -> str:
    """The name of the index that a folder has where these weights are in shards."""
    return f"{weights}.index.json"


def shards(index: Path) -> dict[str, str]:
    """Tensor's name -> file's name, from an index; all files are in the index's folder."""
    weight_map = JSONFields(index).content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise load_error(f"{index}: has no 'weight_map'; {_AGAIN}")
    suffix = Path(index.name.removesuffix(index_of(""))).suffix
    for name in weight_map.values():
        if not isinstance(name, str) or not name.endswith(suffix) or "/" in name or "\\" in name:
            raise load_error(f"{index}: {name!r} is not a {suffix} file in its folder; {_AGAIN}")
    return weight_map


def read_weights(folder: Path) -> Iterator[tuple[Path, str, Tensor]]:
    """(file, name, tensor [...]) of every tensor in a folder's weights, names as in the files.

    Raises CheckpointError for files that are missing, damaged or elsewhere, for a shard without a
    tensor that the index lists, and for a tensor in two shards.
    """
    listed: dict[str, str] = {}  # tensor's name: its file's, where weights are in shards
    for weights in WHOLE:
        if inside(folder, weights).is_file():
            break
        if (index := inside(folder, index_of(weights))).is_file():
            listed = shards(index)
            break
    else:
        expected = " or ".join([WHOLE[0], index_of(WHOLE[0]), WHOLE[1]])
        raise load_error(f"{folder}: has no weights; give a folder that has {expected}")
    read_from: dict[str, str] = {}
    for name in sorted(set(listed.values())) or [weights]:
        file = inside(folder, name)
        if not file.is_file():
            raise load_error(f"{file}: this shard is missing; {_AGAIN}")
        for tensor_name, tensor in read_tensors(file).items():
            if tensor_name in read_from:
                what = f"{tensor_name}, which is also in {read_from[tensor_name]}"
                raise load_error(f"{file}: has {what}; save it again")
            read_from[tensor_name] = name
            yield file, tensor_name, tensor
    for tensor_name, name in listed.items():
        if read_from.get(tensor_name) != name:
            what = f"tensor {tensor_name} is missing, although {index_of(weights)} lists it"
            raise load_error(f"{folder / name}: {what}; {_AGAIN}")


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
    """Hugging Face's tensor name, also with a wrapper's prefix like "module." -> OpenAI's."""
    name = re.sub(r"^.*?\b(?=(encoder|decoder|proj_out)\.)", "", name)
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

    Shapes as in `files.expected_shapes`: matrices [out, in]. A matrix for the logits that is not
    the token embedding is `proj_out.weight`, [V, d].
    """
    if not folder.is_dir():
        what = "give the folder with its config.json, not the .safetensors file"
        raise load_error(f"{folder}: {what}")
    config = inside(folder, "config.json")
    if not config.is_file():
        raise load_error(f"{folder}: no config.json; give its folder, or an adapter as --adapter")
    settings = JSONFields(config)
    dims = _read_dims(settings)
    state: dict[str, Tensor] = {}
    for file, name, tensor in read_weights(folder):
        openai = openai_name(name)
        if openai in state:
            raise load_error(f"{file}: has {openai} twice, also as {name}; save it again")
        state[openai] = tensor
    tied = settings.content.get("tie_word_embeddings", True) is not False
    if OUTPUT not in state and not tied:
        reason = "although config.json says tie_word_embeddings: false"
        raise load_error(f"{folder}: has no {OUTPUT}, {reason}; {_AGAIN}")
    tie_output(state)
    if OUTPUT in state and tied:
        text = "%s: %s is used for the logits; set tie_word_embeddings to false in config.json"
        logger.warning(text, folder, f"{OUTPUT} differs from the token embedding and")
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


def _read_dims(fields: JSONFields) -> Dims:
    config, content = fields.file, fields.content
    kind = content.get("model_type")
    if kind != "whisper":
        raise load_error(f"{config}: model_type is {kind!r}, not 'whisper'; give a Whisper model")
    plain = {"activation_function": "gelu", "scale_embedding": False, "quantization_config": None}
    for key, whispers in plain.items():
        if content.get(key, whispers) != whispers:
            found = f"{key} is {content[key]!r:.80}, but only Whisper's {whispers!r} is supported"
            raise load_error(f"{config}: {found}; give a Whisper model with float weights")
    values = {field: fields.whole(key, 1) for field, key in DIMENSIONS.items()}
    for field, value in values.items():
        if value is None:
            raise load_error(f"{config}: has no {DIMENSIONS[field]}; give a folder of transformers")
    return Dims(**{field: value for field, value in values.items() if value is not None})
