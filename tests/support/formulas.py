"""Every cache form from its formula, one head at a time: what the caches are tested against.

Row vectors and the paper's letters (slim attention, arXiv 2503.05840): W_Q, W_K, W_V, W_O are
[d, d] in the orientation x W; head i owns columns i*d_k to (i+1)*d_k. `x` [Q, d] asks, `source`
[T, d] is attended to. Nothing is folded, cached or batched here, and inverses are written as such:
run it in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """One attention block's weights: [d, d] matrices for row vectors, [d] biases, heads."""

    w_q: Tensor
    b_q: Tensor
    w_k: Tensor
    w_v: Tensor
    b_v: Tensor
    w_o: Tensor
    b_o: Tensor
    heads: int

    def run(
        self,
        x: Tensor,
        hidden: Tensor | None,
        head: Callable[[Tensor, slice], tuple[Tensor, Callable[[Tensor], Tensor]]],
    ) -> Tensor:
        """Attend head by head; `head(q_i, columns)` gives its scores and its weighted sum."""
        width = x.shape[-1] // self.heads
        outputs = []
        for i in range(self.heads):
            columns = slice(i * width, (i + 1) * width)
            q = x @ self.w_q[:, columns] + self.b_q[columns]
            scores, weigh = head(q, columns)
            scores = scores * width**-0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            outputs.append(weigh(scores.softmax(dim=-1)))
        return torch.cat(outputs, dim=-1) @ self.w_o + self.b_v @ self.w_o + self.b_o


def attend_kv(p: PlainAttention, x: Tensor, source: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Baseline: keep K = source W_K and V = source W_V."""
    keys, values = source @ p.w_k, source @ p.w_v
    return p.run(x, hidden, lambda q, c: (q @ keys[:, c].T, lambda s: s @ values[:, c]))


def attend_k(p: PlainAttention, x: Tensor, source: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Option 1: keep K; values come back through W_KV = W_K^-1 W_V."""
    keys, w_kv = source @ p.w_k, torch.linalg.inv(p.w_k) @ p.w_v
    return p.run(x, hidden, lambda q, c: (q @ keys[:, c].T, lambda s: s @ keys @ w_kv[:, c]))


def attend_x(p: PlainAttention, x: Tensor, source: Tensor, hidden: Tensor | None = None) -> Tensor:
    """`x` and `e` (option 2): keep the source itself."""
    return p.run(
        x, hidden, lambda q, c: (q @ p.w_k[:, c].T @ source.T, lambda s: s @ source @ p.w_v[:, c])
    )


def attend_v(p: PlainAttention, x: Tensor, source: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Keep V; keys come back through W_VK = W_V^-1 W_K."""
    values, w_vk = source @ p.w_v, torch.linalg.inv(p.w_v) @ p.w_k
    return p.run(x, hidden, lambda q, c: (q @ w_vk[:, c].T @ values.T, lambda s: s @ values[:, c]))


def attend_hybrid(p: PlainAttention, first_w_k: Tensor, x: Tensor, source: Tensor) -> Tensor:
    """The paper's section 6, end: keep the first layer's cross K, for every layer."""
    keys, inverse = source @ first_w_k, torch.linalg.inv(first_w_k)
    w_k, w_v = inverse @ p.w_k, inverse @ p.w_v
    return p.run(x, None, lambda q, c: (q @ w_k[:, c].T @ keys.T, lambda s: s @ keys @ w_v[:, c]))
