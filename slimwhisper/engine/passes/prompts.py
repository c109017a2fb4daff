"""Reads prompts into the caches: several in one pass, before their texts are decoded.

On a GPU they are padded to one of a few shapes. Each shape has a CUDA graph, as a pass launches
some 20 kernels a layer. And cuDNN's attention takes 0.05 to 0.4 s to plan for a new shape.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.rows import Rows, pages_of
from slimwhisper.engine.uploads import padded
from slimwhisper.kernels.graphs import Graphs, bucket_of
from slimwhisper.model.decoder import ScoreRecorder
from slimwhisper.model.model import Model

# of padded prompts; text before a window has at most 223 tokens, and one with a draft may have the
# context's
LENGTHS = (4, 32, 64, 128, 232)
# numbers of a prompt before its pages and its tokens: row, slot, length, two positions
HEAD = 5


class PromptReader:
    """Reads the prompts of a row group."""

    def __init__(
        self,
        model: Model,
        cache: DecoderCache,
        max_batch: int,
        scratch: tuple[int, int],
        graphs: Graphs | None,
    ) -> None:
        """max_batch: prompts together. scratch: the row and the page that padding is written to.
        graphs: None: in the shape of the longest prompt, without graphs.
        """
        self.model, self.cache, self.max_batch = model, cache, max_batch
        self.scratch, self.graphs = scratch, graphs
        context, plan = model.dims.n_text_ctx, model.plan
        self.lengths = (*(n for n in LENGTHS if n < context), context)
        self.pages = pages_of(context)
        self._buffers: tuple[Tensor, Tensor] | None = None  # of graphs: input and output
        if (
            graphs is not None and plan.exact_cross and plan.exact_self
        ):  # other forms read numbers back
            width, d = HEAD + self.pages + context, model.dims.n_text_state
            numbers = torch.zeros((max_batch, width), dtype=torch.int64, device=model.device)
            hidden = torch.zeros((max_batch, context, d), dtype=model.dtype, device=model.device)
            self._buffers = numbers, hidden

    def pack(
        self,
        texts: Sequence[Sequence[int]],
        positions: ArrayLike,
        slots: ArrayLike,
        rows: ArrayLike | None = None,
        table: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """The input of `read` for n texts, on the host: [R, HEAD + pages + T].

        positions [n, 2]: of what `read` returns. slots, rows [n], table [n, pages]: of each text;
        without rows and table, what is kept of the texts will be overwritten by the next ones.
        """
        n, count, longest = len(texts), len(texts), max(map(len, texts))
        if self.graphs is not None:
            count = bucket_of(n, self.max_batch)
            longest = next(length for length in self.lengths if length >= longest)
        row, page = self.scratch
        packed = np.zeros((count, HEAD + self.pages + longest), dtype=np.int64)
        packed[:, 0], packed[n:, 2], packed[:, HEAD : HEAD + self.pages] = row, 1, page
        packed[:n, 1], packed[:n, 2] = slots, [len(t) for t in texts]
        packed[:n, 3:HEAD] = positions
        if rows is not None and table is not None:
            packed[:n, 0], packed[:n, HEAD : HEAD + self.pages] = rows, table
        packed[:n, HEAD + self.pages :] = padded(texts, 0, longest)
        return packed

    def tokens(self, packed: Tensor) -> Tensor:
        """[R, T] of what was packed."""
        return packed[:, HEAD + self.pages :]

    def read(self, packed: Tensor, every: bool = False) -> Tensor:
        """packed: from `pack`, on the device -> hidden [R, 2, d], after the last norm, at the
        positions that were packed, or [R, T, d] of every one; the next call may overwrite it.
        """
        if self.graphs is None or self._buffers is None:
            return self._read(packed, every)
        count, tokens = len(packed), packed.shape[1] - HEAD - self.pages
        inputs = self._buffers[0][:count, : packed.shape[1]]
        hidden = self._buffers[1][:count, : tokens if every else 2]
        inputs.copy_(packed)

        def body() -> None:
            hidden.copy_(self._read(inputs, every))

        self.graphs.run(("prompts", count, tokens, every), body)
        return hidden

    def record(self, packed: Tensor, recorder: ScoreRecorder) -> Tensor:
        """As `read` of every position, and records cross-attention scores."""
        return self._read(packed, True, recorder)

    def _read(self, packed: Tensor, every: bool, recorder: ScoreRecorder | None = None) -> Tensor:
        rows, slots, lengths = packed[:, :3].T.contiguous()
        return self.model.decoder.prefill(
            self.tokens(packed),
            Rows(rows, slots, table=packed[:, HEAD : HEAD + self.pages], lengths=lengths),
            self.cache,
            recorder,
            None if every else packed[:, 3:HEAD],
        )
