"""Random checkpoints for tests, writers of both file formats, and what every loading test asks."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slimwhisper.checkpoint import load_checkpoint
from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims

State = dict[str, Tensor]

# This table stands here a second time, the other way round, so that a slip in the product shows.
_HUGGING_FACE = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
}
_HUGGING_FACE_TOP = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    "encoder.ln_post.weight": "encoder.layer_norm.weight",
    "encoder.ln_post.bias": "encoder.layer_norm.bias",
    "decoder.ln.weight": "decoder.layer_norm.weight",
    "decoder.ln.bias": "decoder.layer_norm.bias",
}


def tiny_dims(
    *,
    multilingual: bool = True,
    width: int = 64,
    heads: int = 1,
    audio_layers: int = 1,
    text_layers: int = 2,
    n_mels: int = 80,
    n_text_ctx: int = 448,
) -> Dims:
    """Dimensions of a small model with Whisper's vocabulary; its head width is width / heads."""
    return Dims(
        n_mels=n_mels,
        n_audio_ctx=1500,
        n_audio_state=width,
        n_audio_head=heads,
        n_audio_layer=audio_layers,
        n_vocab=(51_866 if n_mels == 128 else 51_865) if multilingual else 51_864,
        n_text_ctx=n_text_ctx,
        n_text_state=width,
        n_text_head=heads,
        n_text_layer=text_layers,
    )


# Eight wide: the vocabulary alone would make wider files large.
DIMS = tiny_dims(width=8, audio_layers=1, text_layers=1)


def random_state(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Float32 weights under OpenAI's names, the same for the same dims and seed.

    The scales make a lively model. Logits have a standard deviation of about 4 and the best one
    leads by 0.5 or more (median). Self-attention rests on some tens of tokens, cross-attention
    on some hundreds of the 1500 frames. Greedy text differs from window to window, has
    timestamps, and ends after 1 to 224 tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    def affine(name: str, *shape: int, gain: float, bias: bool = True) -> None:
        fan_in = torch.Size(shape[1:]).numel()
        state[f"{name}.weight"] = normal(*shape, std=gain * fan_in**-0.5)
        if bias:
            state[f"{name}.bias"] = normal(shape[0], std=0.1)

    def layer_norm(name: str, width: int, gain: float = 1.0) -> None:
        state[f"{name}.weight"] = gain * (1 + normal(width, std=0.1))
        state[f"{name}.bias"] = normal(width, std=0.1)

    def attention(name: str, width: int, *, out_gain: float) -> None:
        affine(f"{name}.query", width, width, gain=1.4)
        affine(f"{name}.key", width, width, gain=1.4, bias=False)
        affine(f"{name}.value", width, width, gain=1.5)
        affine(f"{name}.out", width, width, gain=out_gain)
        layer_norm(f"{name}_ln", width)

    def block(name: str, width: int, *, cross: bool) -> None:
        attention(f"{name}.attn", width, out_gain=0.5 if cross else 1.5)
        if cross:
            attention(f"{name}.cross_attn", width, out_gain=1.2)
        affine(f"{name}.mlp.0", 4 * width, width, gain=1.5)
        affine(f"{name}.mlp.2", width, 4 * width, gain=1.5)
        layer_norm(f"{name}.mlp_ln", width)

    width = dims.n_audio_state
    state["encoder.positional_embedding"] = _sinusoids(dims.n_audio_ctx, width)
    affine("encoder.conv1", width, dims.n_mels, 3, gain=2.0)
    affine("encoder.conv2", width, width, 3, gain=2.0)
    for i in range(dims.n_audio_layer):
        block(f"encoder.blocks.{i}", width, cross=False)
    layer_norm("encoder.ln_post", width)

    width = dims.n_text_state
    embedding = normal(dims.n_vocab, width, std=1.0)
    # Longer rows come out on top more often: the end of text, and the 1501 timestamps.
    embedding[50_257 if dims.is_multilingual else 50_256] *= 2.3
    embedding[-1501:] *= 1.15
    state["decoder.token_embedding.weight"] = embedding
    state["decoder.positional_embedding"] = normal(dims.n_text_ctx, width, std=1.2)
    for i in range(dims.n_text_layer):
        block(f"decoder.blocks.{i}", width, cross=True)
    layer_norm("decoder.ln", width, gain=4 * width**-0.5)
    # The output matrix is the embedding: with gains of one sign every token would predict itself.
    state["decoder.ln.weight"] *= torch.randint(0, 2, (width,), generator=generator) * 2 - 1
    return state


def save_openai(path: Path, dims: Dims, state: dict[str, Tensor]) -> Path:
    """Write an OpenAI checkpoint."""
    torch.save({"dims": asdict(dims), "model_state_dict": state}, path)
    return path


def save_hf(folder: Path, dims: Dims, state: dict[str, Tensor], shards: int = 1) -> Path:
    """Write a folder as `save_pretrained` does: config.json and one or more safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(dims), indent=2))
    tensors = {hf_name(name): tensor.contiguous() for name, tensor in state.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = {
        name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors"
        for i, name in enumerate(tensors)
    }
    for file in set(files.values()):
        part = {name: tensors[name] for name in files if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": files,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def hf_config(dims: Dims) -> dict[str, Any]:
    """The part of Hugging Face's config.json that gives the dimensions."""
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "num_mel_bins": dims.n_mels,
        "max_source_positions": dims.n_audio_ctx,
        "d_model": dims.n_text_state,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_layers": dims.n_audio_layer,
        "vocab_size": dims.n_vocab,
        "max_target_positions": dims.n_text_ctx,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_layers": dims.n_text_layer,
    }


def hf_name(name: str) -> str:
    """Hugging Face's name of the tensor that OpenAI calls `name`."""
    if match := re.fullmatch(r"(\w+)\.blocks\.(\d+)\.(.+)\.(weight|bias)", name):
        side, layer, part, kind = match.groups()
        return f"model.{side}.layers.{layer}.{_HUGGING_FACE[part]}.{kind}"
    return f"model.{_HUGGING_FACE_TOP.get(name, name)}"


def _sinusoids(length: int, channels: int) -> Tensor:
    """[length, channels], Whisper's fixed encoder positions."""
    half = channels // 2
    rates = torch.exp(-torch.arange(half) * (9.210340371976184 / max(half - 1, 1)))  # ln 10,000
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def refusal(name: str | Path, **arguments: Any) -> str:
    """The message of the CheckpointError that loading raises: one line."""
    try:
        load_checkpoint(name, **arguments)
    except CheckpointError as error:
        message = str(error)
    else:
        raise AssertionError(f"{name} loads")
    assert "\n" not in message, message
    assert 0 < len(message) < 700, message
    return message


def assert_equal(
    found: Mapping[str, Tensor], expected: State, dtype: torch.dtype = torch.float32
) -> None:
    """The same names and values, as plain CPU tensors of this dtype."""
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == dtype, name
        assert found[name].device.type == "cpu", name
        assert not found[name].requires_grad, name
        assert torch.equal(found[name], tensor.to(dtype)), name
