"""Multi-head attention over stored keys and values: the baseline, cache form `kv`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.cpu.library import library

MAX_SCORES = 1_350_000  # that `rounded_head_attention` computes at a time
AMX = torch.cpu.get_capabilities().get("amx_bf16", False)


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


def rounded_head_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`head_attention` in bfloat16 with wider sums, for CPUs that multiply bfloat16 fast.

    Works on some queries at a time, so that their scores stay in the CPU's caches.

    Arguments:
        queries: [B, h, Q, d_k]; keys, values: [B, h, T, d_k], float32.
    Returns:
        [B, h, Q, d_k] float32; its error is about five times that of torch's own in bfloat16.
    """
    output = torch.empty_like(queries)
    block = max(1, MAX_SCORES // (keys.shape[1] * keys.shape[2]))  # queries
    for out, q, k, v in zip(output, queries, keys, values, strict=True):
        q = (q * q.shape[-1] ** -0.5).bfloat16()
        k, v = k.bfloat16().transpose(1, 2), v.bfloat16()
        for q_block, out_block in zip(q.split(block, 1), out.split(block, 1), strict=True):
            out_block.copy_((q_block @ k).softmax(-1) @ v)
    return output


def encoder_attention(
    queries: Tensor, keys: Tensor, values: Tensor, rounded: bool = False
) -> Tensor:
    """`head_attention` of all positions of windows: in C on x86 CPUs, and in bfloat16 on those with
    AVX512-BF16 that have no AMX, for which PyTorch's is made.

    Arguments:
        queries, keys, values: [B, p, h, d_k], one dtype.
        rounded: compute in bfloat16 if they are float32; see `rounded_head_attention`.
    Returns:
        [B, p, h, d_k], their dtype.
    """
    if queries.device.type == "cpu":
        dtype = torch.bfloat16 if rounded else queries.dtype
        compiled = None if AMX and dtype == torch.bfloat16 else library(dtype)
        mixed = None if compiled is None else compiled.encoder_attention(queries, keys, values)
        if mixed is not None:
            return mixed
    attend = rounded_head_attention if rounded else head_attention
    return attend(*(t.transpose(1, 2) for t in (queries, keys, values))).transpose(1, 2)


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
