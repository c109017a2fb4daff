"""Offline folding of an attention block into the form that its cache needs, in float64.

Every form but `kv` is latent attention (docs/caches.md): each token has a latent Z = X P, head i's
query is mapped to q_i A_i and scored against Z, and the weighted sum of Z is mapped back by B_i.

    form    P      A_i           B_i          source
    x, e    1      W_K,i^T       W_V,i        slim attention (arXiv 2503.05840), option 2
    k       W_K    unit block i  W_KV,i       option 1, W_KV = W_K^-1 W_V
    v       W_V    W_VK,i^T      unit block i the alternative, W_VK = W_V^-1 W_K
    hybrid  W_K,1  W_K,new,i^T   W_V,new,i    end of section 6, W_new = W_K,1^-1 W; layer 1: k
    x8, e8  1/S    S W_K,i^T     S W_V,i      as x and e, for a latent that is rounded to float8

Softmax rows sum to 1, so b_V moves into the output bias, c* = b_V W_O + b_O. A key bias adds the
same number to all of a query's scores, so it is dropped. The source X of `x8` and `e8` is the
output of a layer norm, n G + B. They store (X - B) / S with column scales S of about |G|, so that
all columns have a similar range; B adds the same number to all scores, and B W_V goes into the
output bias. Matrices here are in `torch.nn.Linear`'s layout [out, in], so x W is `linear(x, W)`
and W_K^-1 W_V is solved on transposes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from slimwhisper.cache.activations import Activations
from slimwhisper.cache.forms import FORMS, settings_of
from slimwhisper.cache.settings import split_spec
from slimwhisper.kernels.linear import Weight, in_half, pack


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


@dataclass(frozen=True, slots=True)
class Folded:
    """One attention block, ready for its cache. None: the map is a selection or the identity.

    `kv` and `zack` use `project` for K and `values` for V, and have no maps; with `zack`, `query`,
    `project` and `values` have fewer rows, and `out` fewer columns.
    """

    form: str
    heads: int
    query: Weight  # [d, d]
    query_bias: Tensor  # [d]
    out: Weight  # [d, d]
    out_bias: Tensor  # [d]
    project: Weight | None = None  # [d, d]: P, source -> latent, or K
    values: Weight | None = None  # [d, d]: source -> V
    key_map: Tensor | None = None  # [h, d_k, d]: A_i
    value_map: Tensor | None = None  # [h, d_k, d]: B_i^T
    column_scales: Tensor | None = None  # [d]: S, for a latent in float8
    offset: Tensor | None = None  # [d]: B, subtracted from the source
    settings: Any = None  # of the form, if it has some
    layer: int = 0  # of the decoder
    # by name, what a form has learned from recorded activations; float64
    learned: Mapping[str, Tensor] = field(default_factory=dict)

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

    def packed(self) -> "Folded":
        """The same with its matrices as `slimwhisper.kernels` multiplies fastest by them."""
        ways = {n: partial(pack, small_batches=True) for n in ("query", "out", "project", "values")}
        packed: dict[str, Any] = {
            name: way(matrix)
            for name, way in (ways | {"key_map": in_half, "value_map": in_half}).items()
            if isinstance(matrix := getattr(self, name), Tensor)
        }
        return replace(self, **packed)


def solve(source: Tensor, target: Tensor) -> Tensor:
    """W_source^-1 W_target [d, d], which maps the projection of source to that of target; all
    [out, in].

    Solved in float64. A singular source gives inf or NaN, which the guard rejects.
    """
    solution, _ = torch.linalg.solve_ex(source.double().T, target.double().T)
    return solution.T


@dataclass(frozen=True, slots=True)
class Context:
    """What some forms need in addition to the block's weights."""

    first_key: Tensor | None = None  # [d, d]: layer 0's cross W_K
    norm: tuple[Tensor, Tensor] | None = None  # [d], [d]: weight, bias of the latent's norm
    settings: Any = None  # of the form, if it has some
    attention: Literal["cross", "self"] = "cross"
    layer: int = 0  # of the decoder
    blocks: Sequence[Attention] = ()  # of all layers
    # for forms that learn: the activations to learn from, or what was learned before
    activations: Activations | None = None
    learned: Mapping[str, Tensor] | None = None
    # by form, results of the first layer's fold for all layers of this attention
    shared: dict[str, Any] = field(default_factory=dict)


def _blank(block: Attention) -> Folded:
    return Folded("", block.heads, block.query, block.query_bias, block.out, block.out_bias)


def _by_head(weight: Tensor, block: Attention) -> Tensor:
    """[d, d] -> [h, d_k, d]."""
    return weight.unflatten(0, (block.heads, -1))


def fold_kv(block: Attention, context: Context) -> Folded:
    """`kv`: nothing is folded."""
    return replace(_blank(block), project=block.key, values=block.value)


def fold_latent(block: Attention, context: Context) -> Folded:
    """`x` and `e`: W_K to the query side, W_V to the output side."""
    key_map, value_map = _by_head(block.key, block), _by_head(block.value, block)
    return replace(_blank(block), key_map=key_map, value_map=value_map)


def fold_k(block: Attention, context: Context) -> Folded:
    """`k`: values are rebuilt by W_KV = W_K^-1 W_V."""
    w_kv = solve(block.key, block.value)
    return replace(_blank(block), project=block.key, value_map=_by_head(w_kv, block))


def fold_v(block: Attention, context: Context) -> Folded:
    """`v`: keys are rebuilt by W_VK = W_V^-1 W_K."""
    w_vk = solve(block.value, block.key)
    return replace(_blank(block), project=block.value, key_map=_by_head(w_vk, block))


def fold_hybrid(block: Attention, context: Context) -> Folded:
    """`hybrid`: keys and values are rebuilt from the first layer's keys. In the first layer this is
    `k`, without a key map.
    """
    first = context.first_key
    assert first is not None
    return replace(
        _blank(block),
        project=first,
        key_map=_by_head(solve(first, block.key), block) if context.layer else None,
        value_map=_by_head(solve(first, block.value), block),
    )


def fold_float8(block: Attention, context: Context) -> Folded:
    """`x8` and `e8`: column scales and the norm's bias go into the weights."""
    assert context.norm is not None
    weight, bias = context.norm[0].double(), context.norm[1].double()
    # a nearly constant column would store only rounding errors
    column_scales = torch.maximum(weight.abs(), bias.abs() / 64).clamp(min=1e-6)
    return replace(
        _blank(block),
        key_map=_by_head(block.key * column_scales, block),
        value_map=_by_head(block.value * column_scales, block),
        out_bias=block.out_bias + block.out.double() @ (block.value.double() @ bias),
        column_scales=column_scales,
        offset=bias,
    )


def fold(block: Attention, form: str, context: Context | None = None) -> Folded:
    """One block, folded for a form or spec of `slimwhisper.cache.forms`.

    Raises ValueError for an unknown form or invalid settings.
    """
    name = split_spec(form)[0]
    if name not in FORMS:
        raise ValueError(f"unknown cache form {name!r}")
    settings = settings_of(form)
    context = replace(context or Context(), settings=settings)
    folded: Folded = FORMS[name].use("fold")(block, context)
    return replace(folded, form=form, settings=settings, layer=context.layer)
