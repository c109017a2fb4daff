"""Makes Whisper models of any shape with seeded random weights, and recordings of noise, to measure
and to test with.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.checkpoint.files import EMBEDDING, expected_shapes
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.types import SAMPLE_RATE, Dims

RECORDING_SECONDS = 29  # one window
DIFFERENT = 8  # recordings, which are then repeated

Audio = NDArray[np.float32]
_GAINS = {  # part of a layer's name: gain of the sum over its inputs
    "conv": 2.0,
    "cross_attn.out": 1.2,
    "query": 1.4,
    "key": 1.4,
    "value": 1.5,
    "mlp": 1.5,
    "encoder": 1.5,  # its attention's output
    "decoder": 0.5,  # self-attention's
}


def recordings(count: int) -> list[Audio]:
    """Seeded noise that swells and stops, float32 [n] each; the first `DIFFERENT` ones differ."""

    def noise(seed: int) -> Audio:
        rng = np.random.default_rng(seed)
        n = RECORDING_SECONDS * SAMPLE_RATE
        envelope = np.repeat(rng.uniform(0, 0.3, RECORDING_SECONDS * 4), SAMPLE_RATE // 4)
        return (rng.standard_normal(n) * envelope).astype(np.float32)

    distinct = [noise(seed) for seed in range(min(count, DIFFERENT))]
    return [distinct[i % DIFFERENT] for i in range(count)]


def random_checkpoint(dims: Dims, seed: int = 0) -> Checkpoint:
    """A model for benchmarks: it samples only text, up to the token limit. Its weights are numbers
    of float16, as those of OpenAI's checkpoints are.

    The guard accepts every preset for it, because the keys' weights are orthogonal; with matrices
    of independent numbers it would not.
    """
    state = random_state(dims, seed)
    # special tokens get a logit of 0, far below the best of some 50,000 others
    state[EMBEDDING][dims.end_of_text :] = 0
    for name, weight in state.items():
        if name.startswith("decoder.") and name.endswith(".key.weight"):
            state[name] = torch.linalg.qr(weight)[0] * 1.4
    for weight in state.values():
        weight.copy_(weight.half())
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
    for name, shape in expected_shapes(dims).items():
        if name == "encoder.positional_embedding":
            state[name] = _sinusoids(*shape)
            continue
        tensor = torch.randn(*shape, generator=generator)
        layer, _, kind = name.rpartition(".")
        if kind == "bias":
            tensor *= 0.1
        elif "ln" in layer:
            gain = 4 * dims.n_text_state**-0.5 if layer == "decoder.ln" else 1.0
            tensor = gain * (1 + tensor * 0.1)
        elif len(shape) > 1 and name not in (EMBEDDING, "decoder.positional_embedding"):
            gain = next(gain for part, gain in _GAINS.items() if part in layer)
            tensor *= gain * torch.Size(shape[1:]).numel() ** -0.5
        state[name] = tensor
    state["decoder.positional_embedding"] *= 1.2
    # Longer rows win more often: the end of text, and the 1501 timestamps.
    state[EMBEDDING][dims.end_of_text] *= 2.3
    state[EMBEDDING][-1501:] *= 1.15
    # The output matrix is the embedding: with gains of equal sign every token would predict itself.
    signs = torch.randint(0, 2, (dims.n_text_state,), generator=generator) * 2 - 1
    state["decoder.ln.weight"] *= signs
    return state


def _sinusoids(length: int, channels: int) -> Tensor:
    """Whisper's fixed encoder positions, [length, channels]."""
    half = channels // 2
    rates = torch.exp(-torch.arange(half) * (9.210340371976184 / max(half - 1, 1)))  # ln 10,000
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
