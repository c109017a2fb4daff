"""Whisper models of any shape with seeded random weights, for benchmarks and tests."""

import torch
from torch import Tensor

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.types import Dims


def random_checkpoint(dims: Dims, seed: int = 0) -> Checkpoint:
    """A model for benchmarks: it samples only text, up to the token limit.

    The guard accepts every preset for it, because the keys' weights are orthogonal; with matrices
    of independent numbers it would not.
    """
    state = random_state(dims, seed)
    # special tokens get a logit of 0, far below the best of some 50,000 others
    state["decoder.token_embedding.weight"][dims.end_of_text :] = 0
    for name, weight in state.items():
        if name.startswith("decoder.") and name.endswith(".key.weight"):
            state[name] = torch.linalg.qr(weight)[0] * 1.4
    return Checkpoint(f"random {dims.n_text_state} wide", dims, state)


def random_state(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Float32 weights under OpenAI's names, matrices [out, in]; determined by dims and seed.

    The scales make the model behave realistically. Logits have a standard deviation of about 4, and
    the best one leads by 0.5 or more (median). Self-attention spreads over tens of tokens,
    cross-attention over hundreds of the 1500 frames. Greedy text differs from window to window,
    has timestamps, and ends after 1 to 224 tokens.
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
    # Longer rows win more often: the end of text, and the 1501 timestamps.
    embedding[dims.end_of_text] *= 2.3
    embedding[-1501:] *= 1.15
    state["decoder.token_embedding.weight"] = embedding
    state["decoder.positional_embedding"] = normal(dims.n_text_ctx, width, std=1.2)
    for i in range(dims.n_text_layer):
        block(f"decoder.blocks.{i}", width, cross=True)
    layer_norm("decoder.ln", width, gain=4 * width**-0.5)
    # The output matrix is the embedding: with gains of equal sign every token would predict itself.
    state["decoder.ln.weight"] *= torch.randint(0, 2, (width,), generator=generator) * 2 - 1
    return state


def _sinusoids(length: int, channels: int) -> Tensor:
    """Whisper's fixed encoder positions, [length, channels]."""
    half = channels // 2
    rates = torch.exp(-torch.arange(half) * (9.210340371976184 / max(half - 1, 1)))  # ln 10,000
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
