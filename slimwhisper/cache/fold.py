"""Offline folding of an attention block into the form that its cache needs, in float64.

`slimwhisper.cache.forms` has the forms, and what each folds. Softmax rows sum to 1, so b_V moves
into the output bias, c* = b_V W_O + b_O. A key bias adds the same number to all of a query's
scores, so it is dropped. Matrices here are in `torch.nn.Linear`'s layout [out, in], so x W is
`linear(x, W)` and W_K^-1 W_V is solved on transposes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from slimwhisper.cache.forms import Form, parse_form
from slimwhisper.kernels.linear import Weight, in_half, pack, quantize
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention block of a checkpoint: [d, d] weights in [out, in] layout, [d] biases."""

    query: Tensor
    query_bias: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    out_bias: Tensor  # c*, float64: the value bias is folded in
    heads: int

    @staticmethod
    def from_state(state: Mapping[str, Tensor], prefix: str, heads: int) -> "Attention":
        """The weights [d, d] and biases [d] whose names start with a prefix, such as
        "decoder.blocks.0.attn.".
        """
        weights = {
            name: state[f"{prefix}{name}.weight"] for name in ("query", "key", "value", "out")
        }
        value_bias, out_bias = (state[f"{prefix}{name}.bias"].double() for name in ("value", "out"))
        return Attention(
            query_bias=state[f"{prefix}query.bias"],
            out_bias=weights["out"].double() @ value_bias + out_bias,
            heads=heads,
            **weights,
        )

    def by_head(self, weight: Tensor) -> Tensor:
        """[d, d] -> [h, d_k, d]."""
        return weight.unflatten(0, (self.heads, -1))

    def solve(self, source: Tensor, target: Tensor) -> Tensor:
        """W_source^-1 W_target by head, [h, d_k, d], which maps the projection of source to that of
        target; both [d, d].

        Solved in float64. A singular source gives inf or NaN, which the guard rejects.
        """
        solution, _ = torch.linalg.solve_ex(source.double().T, target.double().T)
        return self.by_head(solution.T)

    def folded(self, form: Form, **parts: Any) -> "Folded":
        """This block for a form, with these fields; the others are the block's own, or None."""
        names = ("heads", "query", "query_bias", "out", "out_bias")
        return Folded(form, **{name: getattr(self, name) for name in names} | parts)


@dataclass(frozen=True, slots=True)
class Folded:
    """One attention block, ready for its cache. None: the map is a selection or the identity.

    `kv` and `zack` use `project` for K and `values` for V, and have no maps; with `zack`, `query`,
    `project` and `values` have fewer rows, and `out` fewer columns.
    """

    form: Form
    heads: int
    query: Weight  # [d, d]
    query_bias: Tensor  # [d]
    out: Weight  # [d, d]
    out_bias: Tensor  # [d]
    project: Weight | None = None  # [d, d]: P, source -> latent, or K
    values: Weight | None = None  # [d, d]: source -> V
    key_map: Tensor | None = None  # [h, d_k, d]: A_i
    value_map: Tensor | None = None  # [h, d_k, d]: B_i^T
    # for steps in int8, the maps as rows of outputs, [h d, d_k] and [h d_k, d]
    key_integers: Weight | None = None
    value_integers: Weight | None = None
    column_scales: Tensor | None = None  # [d]: S, for a latent in float8
    offset: Tensor | None = None  # [d]: B, subtracted from the source
    stored: torch.dtype | None = None  # of a latent of the audio, if it is not the model's
    layer: int = 0  # of the decoder

    @property
    def width(self) -> int:
        """d"""
        return self.out_bias.shape[0]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Folded":
        """The same on `device`, rounded once to `dtype`."""
        moved: dict[str, Any] = {
            f.name: value.to(device, dtype).contiguous()
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def packed(self, stored: torch.dtype | None = None) -> "Folded":
        """The same with its matrices as `slimwhisper.kernels` multiplies fastest by them. stored:
        of a latent of the audio. If it is int16, the matrices of attention to a latent are in int8;
        where C cannot multiply so, the latent is in float16.
        """
        keys, values = self.key_map, self.value_map
        rounded: dict[str, Tensor] = {}
        if stored == torch.int16:
            stored = torch.float16
            fits = self.width % 32 == 0 and self.column_scales is None
            if keys is not None and values is not None and fits and keys.shape[1] % 16 == 0:
                stored = torch.int16
                rounded = {name: getattr(self, name) for name in ("query", "out")}
                rounded["key_integers"] = keys.mT.flatten(0, 1)
                rounded["value_integers"] = values.flatten(0, 1)
        packed: dict[str, Any] = {"stored": stored}
        packed |= {name: quantize(t, fine_rows=2**31) for name, t in rounded.items()}
        for name in ("query", "out", "project", "values", "key_map", "value_map"):
            if name not in rounded and isinstance(t := getattr(self, name), Tensor):
                packed[name] = in_half(t) if "map" in name else pack(t, small_batches=True)
        return replace(self, **packed)


@dataclass(frozen=True, slots=True)
class Context:
    """What some forms need in addition to the block's weights."""

    norm: tuple[Tensor, Tensor] | None = None  # [d], [d]: weight, bias of the latent's norm
    attention: str = "cross"  # or "self"
    layer: int = 0  # of the decoder
    blocks: Sequence[Attention] = ()  # of all layers


@dataclass(frozen=True, slots=True)
class Activations:
    """Of one window, or of several in a row; float32."""

    features: Tensor  # [p, d]: the encoder's output
    self_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of self-attention
    cross_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of cross-attention

    def source(self, attention: str, layer: int) -> Tensor:
        """[n, d]: from which a layer's "cross" or "self" attention makes keys and values."""
        return self.features if attention == "cross" else self.self_inputs[layer]

    def query_inputs(self, attention: str, layer: int) -> Tensor:
        """[T, d]: from which a layer's "cross" or "self" attention makes queries."""
        return (self.cross_inputs if attention == "cross" else self.self_inputs)[layer]


def blocks_of(
    state: Mapping[str, Tensor], dims: Dims, attention: str
) -> Iterator[tuple[Attention, Context]]:
    """Every decoder layer's block of "cross" or "self" attention, and its context.

    state: OpenAI's names; matrices [out, in].
    """
    name = "cross_attn" if attention == "cross" else "attn"
    prefixes = [f"decoder.blocks.{i}.{name}" for i in range(dims.n_text_layer)]
    blocks = [Attention.from_state(state, f"{p}.", dims.n_text_head) for p in prefixes]
    for i, (prefix, block) in enumerate(zip(prefixes, blocks, strict=True)):
        # the norm before E, or before the layer
        norm = "encoder.ln_post" if attention == "cross" else f"{prefix}_ln"
        scales = state[f"{norm}.weight"], state[f"{norm}.bias"]
        yield block, Context(scales, attention, i, blocks)


def fold(block: Attention, form: str | Form, context: Context | None = None) -> Folded:
    """One block, folded for a form. Raises ValueError for an invalid spec."""
    form, context = parse_form(form), context or Context()
    return replace(form.fold(block, context), form=form, layer=context.layer)
