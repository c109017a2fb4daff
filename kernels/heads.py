"""Multi-head attention over stored keys and values: the baseline, cache form `kv`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import library, processor_has


def head_attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(q_i K_i^T / sqrt(d_k)) V_i for every head i.

    Arguments:
        queries: [B, h, Q, d_k].
        keys, values: [B, h, T, d_k], same dtype.
        bias: broadcastable to [B, h, Q, T], same dtype, added to the scores; -inf hides a position.
        causal: query t sees only positions 0..t; not together with `bias`.
    Returns:
        [B, h, Q, d_k].
    """
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, is_causal=causal)


def encoder_attention(
    queries: Tensor, keys: Tensor, values: Tensor, rounded: bool = False
) -> Tensor:
    """`head_attention` of all positions of windows: in C on x86 CPUs, except in bfloat16 on those
    with AMX, for which PyTorch's is made.

    Arguments:
        queries, keys, values: [B, p, h, d_k], one dtype.
        rounded: if they are float32, C may compute in bfloat16, or in whole numbers.
    Returns:
        [B, p, h, d_k], their dtype.
    """
    by_pytorch = queries.dtype == torch.bfloat16 and processor_has("amx_bf16")
    if queries.device.type == "cpu" and not by_pytorch:
        compiled = (library(torch.bfloat16) if rounded else None) or library(queries.dtype)
        if compiled is not None:
            mixed = compiled.encoder_attention(queries, keys, values, rounded)
            if mixed is not None:
                return mixed
    q, k, v = (t.transpose(1, 2) for t in (queries, keys, values))
    return head_attention(q, k, v).transpose(1, 2)


def head_attention_reference(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None, causal: bool = False
) -> Tensor:
    """The same from the definition, in at least float32: [B, h, Q, d_k] -> [B, h, Q, d_k]."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    scores = queries.to(wide) @ keys.to(wide).transpose(-1, -2) * queries.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(dim=-1) @ values.to(wide)).to(queries.dtype)
