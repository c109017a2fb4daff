"""Is this a complete Whisper model with finite weights?"""

from collections.abc import Mapping
from dataclasses import astuple

import torch
from torch import Tensor

from slimwhisper.checkpoint.files import load_error
from slimwhisper.types import DTYPES, Dims

EMBEDDING = "decoder.token_embedding.weight"  # [V, d], also for the logits, unless there is
OUTPUT = "proj_out.weight"  # [V, d]
FACTORS = ("weight1", "weight2")  # in place of a weight [out, in]: [in, r] and [r, out]
TEXTS = range(8, 4097)  # tokens of a text's context; Whisper's has 448


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


def factored_layers(state: Mapping[str, Tensor]) -> set[str]:
    """The names, with a dot at their end, of the layers that have a factor of their weight."""
    names = [name for name in state if isinstance(name, str)]  # a file may have other keys
    return {name.removesuffix(f) for name in names for f in FACTORS if name.endswith(f".{f}")}


def _factor_shapes(
    name: str, expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]
) -> dict[str, tuple[int, ...]]:
    """`expected` with factors in place of the weights that `state` has as factors. The first one's
    second dimension is their rank. Raises CheckpointError for layers that cannot be factored.
    """
    shapes = dict(expected)
    for layer in sorted(factored_layers(state)):
        shape = shapes.pop(f"{layer}weight", ())
        if len(shape) != 2 or not layer.startswith("encoder.blocks."):
            what = f"the weight of {layer[:-1]!s:.200} is in two factors"
            remedy = "multiply them and save it again"
            raise load_error(f"{name}: {what}, but only the encoder's matrices may be; {remedy}")
        first, second = (f"{layer}{factor}" for factor in FACTORS)
        rank = max([1, *getattr(state.get(first), "shape", ())[1:2]])
        shapes |= {first: (shape[1], rank), second: (rank, shape[0])}
    return shapes


def validate(name: str, dims: Dims, state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless `state` has the tensors of `expected_shapes`, all finite.

    state: OpenAI's name -> tensor, matrices [out, in]. The encoder's may be in two `FACTORS`.
    """
    if min(astuple(dims)) < 1:
        raise load_error(f"{name}: invalid dimensions {list(astuple(dims))}; copy it again")
    mels, audio, text, width = dims.n_mels, dims.n_audio_ctx, dims.n_text_ctx, dims.n_text_state
    problems = {
        f"{mels} mel bands are not Whisper's 80 or 128": mels not in (80, 128),
        f"{audio} audio positions are more than 1500, the last timestamp's": audio > 1500,
        f"{text} text positions are not {TEXTS.start} to {TEXTS[-1]}": text not in TEXTS,
        f"the widths {dims.n_audio_state} and {width} differ": dims.n_audio_state != width,
        f"{width} is not divisible by {dims.n_audio_head} heads": width % dims.n_audio_head,
        f"{width} is not divisible by {dims.n_text_head} heads": width % dims.n_text_head,
    }
    if wrong := next((reason for reason, holds in problems.items() if holds), None):
        raise load_error(f"{name}: {wrong}; it cannot be run as Whisper")

    layers = dims.n_audio_layer + dims.n_text_layer
    if layers > len(state):  # checked first: memory must not grow with a number from the file
        raise load_error(
            f"{name}: {len(state)} tensors are too few for {layers} layers; copy it again"
        )
    expected = expected_shapes(dims)
    keys = [n.removesuffix("weight") for n in expected if n.endswith(".key.weight")]
    optional = {f"{key}bias": expected[f"{key}weight"][:1] for key in keys}  # dropped by folding
    optional[OUTPUT] = expected[EMBEDDING]
    expected = _factor_shapes(name, expected, state)
    shapes = expected | optional
    missing = [n for n in expected if n not in state]
    extra = [n for n in state if n not in shapes]
    for kind, names in (("is missing", missing), ("has unknown", extra)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            counts = f"{dims.n_audio_layer} encoder and {dims.n_text_layer} decoder layers"
            what = f"{kind} tensor {names[0]!s:.200}{more}"
            raise load_error(f"{name}: {what}; it is not a Whisper model with {counts}")
    for key, tensor in state.items():
        shape = shapes[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            has = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            what = f"tensor {key} has shape {has}, but its dimensions require {list(shape)}"
            raise load_error(f"{name}: {what}; it is not a complete Whisper model")
        check_numbers(name, key, tensor)


def check_numbers(name: str, key: str, tensor: Tensor) -> None:
    """Raise CheckpointError unless a tensor [...] is plain and its numbers are finite."""
    is_float = f"{tensor.dtype}".removeprefix("torch.") in (*DTYPES, "float64")
    if not is_float or tensor.layout != torch.strided or tensor.is_meta:
        what = f"tensor {key} is {tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise load_error(f"{name}: {what}; give dense tensors in {', '.join(DTYPES)} or float64")
    # one pass, no copy: with a NaN anywhere, both the minimum and the maximum are NaN
    if tensor.numel() and not all(torch.isfinite(end) for end in torch.aminmax(tensor)):
        raise load_error(f"{name}: tensor {key} contains NaN or infinity; copy it again")
