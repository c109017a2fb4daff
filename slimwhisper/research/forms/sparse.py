"""Form `sparse`: keys and values, of which a step leaves out positions of small weight.

Softmax sparsity, slim attention (arXiv 2503.05840), section 2: many weights of the softmax are
nearly 0, so the rows of V that they multiply need not be read. (The section is about rows in the
weighted sum of K; that it helps V alike is its aside.) Positions whose weight is below `threshold`
are left out of the second product. The other weights are not divided by their sum, which can be 0,
as in the paper. Since the weights of a query sum to 1, at most 1 / threshold rows of V are read,
and each head's sum changes by at most threshold times the norms of the rows left out. Above 1 / p,
a head with equal weights at all p positions reads none.

A step reads all of K and some of V: at best half of what `kv` reads. The store is as large. `e` and
`x` always read that half, as they read the latent once for both products: there are no bytes to
save. PyTorch multiplies by zeros instead of leaving rows out; `read_bytes` counts what a kernel
that leaves them out would read. A prompt's tokens share the rows of V, so prompts are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossStore, DecodeStep, Rows, Shape, StoreShape
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.forms import KV
from slimwhisper.cache.kv import KVCross, KVSelf
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.research.forms.groups import per_row
from slimwhisper.types import Dims


class SparseAttention:
    """Attention that leaves out small weights, and counts the others."""

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        assert isinstance(weights.form, Sparse)
        self.threshold = weights.form.threshold
        # in all steps so far: weights that were not left out, and all weights
        self.counts = torch.zeros(2, dtype=torch.int64, device=shape.device)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """[B, h, Q, d_k]; keys and values [B, h, T, d_k]; bias [B, 1, 1, T] -> like queries."""
        wide = at_least_float32(queries.dtype)
        scores = queries.to(wide) @ keys.to(wide).mT * queries.shape[3] ** -0.5
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(dim=-1)
        weights = weights.masked_fill(weights < self.threshold, 0)
        self.counts += torch.stack([(weights > 0).sum(), (scores > float("-inf")).sum()])
        return weights.to(values.dtype) @ values

    def read_bytes(self, keys: Tensor, values: Tensor) -> float:
        """K, and the part of V that the steps so far have read on average; before the first step,
        all of V. Synchronises with the device.
        """
        used, visible = (1, 1) if self.counts.is_meta else self.counts.tolist()
        return keys.nbytes + values.nbytes * (used / visible if visible else 1)


class SparseCross(KVCross):
    """Cross-attention of one layer over stored K and V."""

    def __init__(self, weights: Folded, shape: StoreShape, store: CrossStore | None = None) -> None:
        super().__init__(weights, shape, store)
        self.sparse = SparseAttention(weights, shape)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        keys, values = (per_row(rows.of_slots(t), len(x)) for t in self.store.tensors)
        return self.heads.output(self.sparse.attend(self.heads.queries(x), keys, values, None))

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads."""
        return self.sparse.read_bytes(self.store.keys[slot], self.store.values[slot])


class SparseSelf(KVSelf):
    """Self-attention of one layer over stored K and V."""

    def __init__(self, weights: Folded, shape: StoreShape) -> None:
        super().__init__(weights, shape)
        self.sparse = SparseAttention(weights, shape)

    @classmethod
    def page_shapes(cls, weights: Folded, dtype: torch.dtype) -> Sequence[Shape]:
        """None: its steps count what they read of each row."""
        return ()

    def step(self, x: Tensor, step: DecodeStep) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; stores K and V of the tokens, reads step.extent a row."""
        for buffer, new in zip(self.tensors, self.heads.keys_values(x), strict=True):
            buffer[step.rows.ids, :, step.positions] = new[:, :, 0]
        buffers = [t[:, :, : step.extent] for t in self.tensors]
        keys, values = (per_row(step.rows.of_rows(t), len(x)) for t in buffers)
        bias = None if step.bias is None else step.bias().unsqueeze(1)
        return self.heads.output(self.sparse.attend(self.heads.queries(x), keys, values, bias))

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens."""
        return self.sparse.read_bytes(self.keys[row], self.values[row]) * tokens / self.length


@dataclass(frozen=True)
class Sparse(KV):
    """Keys and values. The paper has no threshold."""

    name, exact, cross, self_ = "sparse", False, SparseCross, SparseSelf
    threshold: float = 1e-4  # weights below it are left out

    def __post_init__(self) -> None:
        valid = 0 <= self.threshold < 1
        self.require(valid, "threshold", "0, which leaves nothing out, to below 1")

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        return [[f"threshold={share}" for share in (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)]]
