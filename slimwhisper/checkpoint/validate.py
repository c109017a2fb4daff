"""Is this a complete Whisper model with finite weights?"""

from collections.abc import Mapping
from dataclasses import astuple

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.types import DTYPES, Dims

EMBEDDING = "decoder.token_embedding.weight"  # [V, d], also for the logits, unless there is
OUTPUT = "proj_out.weight"  # [V, d]
LONGEST_TEXT = 4096  # tokens; Whisper's context has 448


def expected_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Every tensor that a Whisper model must have and its shape, [out, in] for matrices."""
    shapes: dict[str, tuple[int, ...]] = {}

    def affine(name: str, *shape: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    def block(name: str, d: int, cross: bool) -> None:
        for attention in ("attn", "cross_attn") if cross else ("attn",):
            for part in ("query", "key", "value", "out"):
                affine(f"{name}.{attention}.{part}", d, d, bias=part != "key")
            affine(f"{name}.{attention}_ln", d)
        affine(f"{name}.mlp.0", 4 * d, d)
        affine(f"{name}.mlp.2", d, 4 * d)
        affine(f"{name}.mlp_ln", d)

    d = dims.n_audio_state
    affine("encoder.conv1", d, dims.n_mels, 3)
    affine("encoder.conv2", d, d, 3)
    shapes["encoder.positional_embedding"] = (dims.n_audio_ctx, d)
    for i in range(dims.n_audio_layer):
        block(f"encoder.blocks.{i}", d, cross=False)
    affine("encoder.ln_post", d)

    d = dims.n_text_state
    shapes[EMBEDDING] = (dims.n_vocab, d)
    shapes["decoder.positional_embedding"] = (dims.n_text_ctx, d)
    for i in range(dims.n_text_layer):
        block(f"decoder.blocks.{i}", d, cross=True)
    affine("decoder.ln", d)
    return shapes


def validate(name: str, dims: Dims, state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless `state` has the tensors of `expected_shapes`, all finite.

    state: OpenAI's name -> tensor, matrices [out, in].
    """
    if min(astuple(dims)) < 1:
        raise problem(f"{name}: its dimensions are {list(astuple(dims))}; copy it again")
    width = dims.n_text_state
    wrong = {
        f"{dims.n_mels} mel bands are not Whisper's 80 or 128": dims.n_mels not in (80, 128),
        f"{dims.n_audio_ctx} audio positions are beyond 1500, the last timestamp's": (
            dims.n_audio_ctx > 1500
        ),
        f"{dims.n_text_ctx} text positions are not 8 to {LONGEST_TEXT}": (
            not 8 <= dims.n_text_ctx <= LONGEST_TEXT
        ),
        f"encoder and decoder differ in width: {dims.n_audio_state}, {width}": (
            dims.n_audio_state != width
        ),
        f"{width} is not divisible by {dims.n_audio_head} heads": width % dims.n_audio_head,
        f"{width} is not divisible by {dims.n_text_head} heads": width % dims.n_text_head,
    }
    for reason, holds in wrong.items():
        if holds:
            raise problem(f"{name}: {reason}; it cannot be run as Whisper")

    layers = dims.n_audio_layer + dims.n_text_layer
    if layers > len(state):  # before anything grows with a number that a file gave
        raise problem(
            f"{name}: {len(state)} tensors are too few for its {layers} layers; copy it again"
        )
    expected = expected_shapes(dims)
    optional = {
        n.removesuffix("weight") + "bias": shape[:1]
        for n, shape in expected.items()
        if n.endswith(".key.weight")
    }  # cancels in the softmax; folding drops it
    optional[OUTPUT] = expected[EMBEDDING]
    shapes = expected | optional
    missing = [n for n in expected if n not in state]
    extra = [n for n in state if n not in shapes]
    for kind, names in (("misses", missing), ("has unknown", extra)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise problem(
                f"{name}: {kind} tensor {names[0]!s:.200}{more}; it is no Whisper model of its "
                f"dimensions, {dims.n_audio_layer} + {dims.n_text_layer} layers"
            )
    for key, tensor in state.items():
        shape = shapes[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            has = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise problem(
                f"{name}: tensor {key} has shape {has}, its dimensions ask for {list(shape)}; "
                "it is no whole Whisper model"
            )
        check_numbers(name, key, tensor)


def check_numbers(name: str, key: str, tensor: Tensor) -> None:
    """Raise CheckpointError unless a tensor [...] is plain and its numbers are finite."""
    if (
        f"{tensor.dtype}".removeprefix("torch.") not in (*DTYPES, "float64")
        or tensor.layout != torch.strided
        or tensor.is_meta
    ):
        raise problem(
            f"{name}: tensor {key} is {tensor.dtype}, {tensor.layout} on {tensor.device}; "
            "plain float16, bfloat16, float32 and float64 work"
        )
    # one pass, no copy: a NaN anywhere is the least and the greatest number
    if tensor.numel() and not all(torch.isfinite(end) for end in torch.aminmax(tensor)):
        raise problem(
            f"{name}: tensor {key} holds NaN or infinity, no finite numbers; copy it again"
        )
