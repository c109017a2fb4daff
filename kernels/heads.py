"""Multi-head attention over stored keys and values: the baseline, cache form `kv`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import library, processor_has


def head_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q_i K_i^T * scale) V_i for every head i.

    Arguments:
        queries: [B, h, Q, d_k].
        keys, values: [B, h, T, d_k], same dtype.
        bias: broadcastable to [B, h, Q, T], same dtype, added to the scores; -inf hides a position.
            Keys and values must be finite in hidden positions too.
        causal: query t sees only positions 0..t; not together with `bias`.
        scale: factor on the scores; None: 1 / sqrt(d_k).
    Returns:
        [B, h, Q, d_k].
    """
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=bias, is_causal=causal, scale=scale
    )


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
