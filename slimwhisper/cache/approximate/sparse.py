"""Form `sparse`: keys and values, of which a step leaves out positions with little weight.

Softmax sparsity, slim attention (arXiv 2503.05840), section 2: many weights of the softmax are
nearly 0, so the rows of V that they multiply need not be read. Positions whose weight is below
`threshold` are left out of the second product. The weights of the others stay as they are, as in
the paper: they are not divided by their sum, which can be 0. Since the weights of a query sum to 1,
at most 1 / threshold rows of V are read, and each head's sum changes by at most threshold times the
norms of the rows left out. Above 1 / p, a head that looks at all p positions alike reads none.

K is read whole, so a step reads K and some of V: at best half of what `kv` reads. Nothing less is
kept. In float16 with p = 1,500 and d = 384, a layer and step: `kv` 2.3 MB, `sparse` from 1.15 MB
(no row of V) to 2.3 MB (all rows); `e` and `x` 1.15 MB, whatever the weights are, as they read the
latent once for both products. There is nothing to leave out there, and no threshold makes `sparse`
read less than they do.

PyTorch multiplies by zeros instead of leaving rows out; `read_bytes` counts what a kernel that
leaves them out would read. A prompt's tokens read the rows of V together, so prompts are exact.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.base import CrossStore, Room, Rows, Step
from slimwhisper.cache.fold import Folded
from slimwhisper.cache.kv import KVCross, KVSelf


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


class SparseAttention:
    """Attention that leaves out small weights and counts the others."""

    def __init__(self, weights: Folded, room: Room) -> None:
        self.threshold: float = weights.settings.threshold
        self.scale = (weights.width // weights.heads) ** -0.5
        # weights that were not left out, and all, over all steps so far
        self.counts = torch.zeros(2, dtype=torch.int64, device=room.device)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """[B, h, Q, d_k]; keys and values [B, h, T, d_k]; bias [B, 1, 1, T] -> like queries."""
        wide = torch.promote_types(queries.dtype, torch.float32)
        scores = queries.to(wide) @ keys.to(wide).transpose(2, 3) * self.scale
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(dim=-1)
        weights = weights.masked_fill(weights < self.threshold, 0)
        seen = (scores > float("-inf")).sum()
        self.counts += torch.stack([(weights > 0).sum(), seen])
        return weights.to(values.dtype) @ values

    def share(self) -> float:
        """Of the rows of V that the steps so far have seen, the share that they read; at first 1.

        An average over all slots or rows. It waits for the device.
        """
        if self.counts.is_meta:
            return 1.0
        kept, seen = self.counts.tolist()
        return kept / seen if seen else 1.0


class SparseCross(KVCross):
    """Cross-attention of one layer over kept K and V."""

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        super().__init__(weights, room, store)
        self.sparse = SparseAttention(weights, room)

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d]."""
        if x.shape[1] > 1:
            return super().attend(x, rows)
        (keys, slots), (values, _) = map(rows.of_slots, self.store.tensors)
        if slots is not None:
            keys, values = keys[slots], values[slots]
        queries = self.heads.queries(x)[:, :, 0]  # [R, h, d_k]
        together = queries.unflatten(0, (len(keys), -1)).transpose(1, 2)  # [W, h, R / W, d_k]
        mixed = self.sparse.mix(together, keys, values, None)
        return self.heads.output(mixed.transpose(1, 2).flatten(0, 1).unsqueeze(2))

    def read_bytes(self, slot: int) -> float:
        """All of K and, of V, what the steps so far have read on average."""
        return self.store.keys[slot].nbytes + self.sparse.share() * self.store.values[slot].nbytes


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
        read = [step.rows.of_rows(t[:, :, : step.extent]) for t in self.tensors]
        keys, values = (t if chosen is None else t[chosen] for t, chosen in read)
        bias = None if step.bias is None else step.bias().unsqueeze(1)
        return self.heads.output(self.sparse.mix(self.heads.queries(x), keys, values, bias))

    def read_bytes(self, row: int, tokens: int) -> float:
        """All of K and, of V, what the steps so far have read on average."""
        kept = self.keys[row].nbytes + self.sparse.share() * self.values[row].nbytes
        return kept * tokens / self.length
