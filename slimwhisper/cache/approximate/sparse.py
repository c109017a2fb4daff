"""Form `sparse`: keys and values, of which a step leaves out positions with little weight.

Softmax sparsity, slim attention (arXiv 2503.05840), section 2: many weights of the softmax are
nearly 0, so the rows of V that they multiply need not be read. (The section is about rows in the
weighted sum of K; that it helps V alike is its aside.) Positions whose weight is below `threshold`
are left out of the second product. The weights of the others stay as they are, as in the paper:
they are not divided by their sum, which can be 0. Since the weights of a query sum to 1, at most
1 / threshold rows of V are read, and each head's sum changes by at most threshold times the norms
of the rows left out. Above 1 / p, a head that looks at all p positions alike reads none.

K is read whole, so a step reads K and some of V: at best half of what `kv` reads. Nothing less is
kept. `e` and `x` read that half whatever the weights are, as they read the latent once for both
products: there are no bytes to save. PyTorch multiplies by zeros instead of leaving rows out;
`read_bytes` counts what a kernel that leaves them out would read. A prompt's tokens read the rows
of V together, so prompts are exact.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.approximate.groups import for_each
from slimwhisper.cache.base import CrossStore, Room, Rows, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.kv import KVCross, KVSelf
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class SparseSettings:
    """Which weights are left out. The paper names no number."""

    threshold: float = 1e-4  # weights below it

    def __post_init__(self) -> None:
        """Raises ValueError for settings that make no sense."""
        if not 0 <= self.threshold < 1:
            raise ValueError(
                f"threshold={self.threshold}: give 0, which leaves nothing out, to below 1"
            )


def ladder(dims: Dims, part: str) -> list[list[str]]:
    """The settings that `tradeoff` and `calibrate` try: `slimwhisper.cache.forms.Form`."""
    return [[f"threshold={share}" for share in (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)]]


class SparseAttention:
    """Attention that leaves out small weights and counts the others."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.threshold: float = weights.settings.threshold
        # weights that were not left out, and all, over all steps so far
        self.counts = torch.zeros(2, dtype=torch.int64, device=room.device)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """[B, h, Q, d_k]; keys and values [B, h, T, d_k]; bias [B, 1, 1, T] -> like queries."""
        wide = at_least_float32(queries.dtype)
        scores = queries.to(wide) @ keys.to(wide).mT * queries.shape[3] ** -0.5
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(dim=-1)
        weights = weights.masked_fill(weights < self.threshold, 0)
        seen = (scores > float("-inf")).sum()
        self.counts += torch.stack([(weights > 0).sum(), seen])
        return weights.to(values.dtype) @ values

    def read_bytes(self, keys: Tensor, values: Tensor) -> float:
        """All of K and, of V, what the steps so far have read on average, over all slots or rows;
        before the first, all of it. It waits for the device.
        """
        kept, seen = (1, 1) if self.counts.is_meta else self.counts.tolist()
        return keys.nbytes + values.nbytes * (kept / seen if seen else 1)


class SparseCross(KVCross):
    """Cross-attention of one layer over kept K and V."""

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        super().__init__(weights, room, store)
        self.sparse = SparseAttention(weights, room)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        keys, values = (for_each(rows.of_slots(t), len(x)) for t in self.store.tensors)
        return self.heads.output(self.sparse.mix(self.heads.queries(x), keys, values, None))

    def read_bytes(self, slot: int) -> float:
        """Bytes of the store that a step of one row reads."""
        return self.sparse.read_bytes(self.store.keys[slot], self.store.values[slot])


class SparseSelf(KVSelf):
    """Self-attention of one layer over kept K and V."""

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room)
        self.sparse = SparseAttention(weights, room)

    def step(self, x: Tensor, step: Step) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]; keeps K and V of the token, reads step.extent of them."""
        ids = step.rows.ids
        for buffer, fresh in zip(self.tensors, self.heads.keys_values(x), strict=True):
            buffer[ids, :, step.positions] = fresh[:, :, 0]
        read = [t[:, :, : step.extent] for t in self.tensors]
        keys, values = (for_each(step.rows.of_rows(t), len(x)) for t in read)
        bias = None if step.bias is None else step.bias().unsqueeze(1)
        return self.heads.output(self.sparse.mix(self.heads.queries(x), keys, values, bias))

    def read_bytes(self, row: int, tokens: int) -> float:
        """Bytes that a step of one row reads with `tokens` tokens."""
        whole = self.sparse.read_bytes(self.keys[row], self.values[row])
        return whole * tokens / self.length
