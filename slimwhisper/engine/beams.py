"""Beam search with patience (arXiv 2204.05424), for all windows of a lane in parallel.

The rules are those of `whisper.decoding.BeamSearchDecoder`: every beam proposes its `width` + 1
best continuations. In order of score, those that end are finished texts, and the first `width`
others are the new beams. A window is done when it has `beams * patience` finished texts.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.plan import CrossCache
from slimwhisper.engine.drafts import Agreed
from slimwhisper.engine.lanes import Lane
from slimwhisper.engine.looks import BeamLook, BeamTexts
from slimwhisper.engine.places import Layout, Places, Ticket
from slimwhisper.engine.rules import NEVER, TimestampState, apply_timestamp_rules
from slimwhisper.kernels.graphs import Graphs
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary


class BeamLane(Lane):
    """A lane whose rows are the beams of their slot."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        cross: CrossCache,
        places: Places,
        patience: float,
        graphs: Graphs | None = None,
    ) -> None:
        super().__init__(model, vocabulary, cross, places, graphs)
        self.may_draft = False
        device, capacity, width = model.device, places.capacity, places.width
        self.max_finished = round(width * patience)  # finished texts that end a search
        # the last entry takes the texts that finish too late, and is never read
        shape = (capacity, self.max_finished + 1)
        self.finished = torch.zeros((*shape, self.limit), dtype=torch.int64, device=device)
        self.finished_lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.finished_scores = torch.zeros(shape, dtype=torch.float32, device=device)
        self.finished_logprobs = torch.zeros(
            (*shape, self.limit), dtype=torch.float32, device=device
        )
        self.finished_count = torch.zeros(capacity, dtype=torch.int64, device=device)

    def place_tensors(self) -> Sequence[Tensor]:
        """The finished texts, each [capacity, ...]."""
        asked = (self.finished_logprobs,) if self.asked else ()
        return (
            *asked,
            *super().place_tensors(),
            *(self.finished, self.finished_lengths),
            *(self.finished_scores, self.finished_count),
        )

    def start(
        self,
        tickets: Sequence[Ticket],
        logits: Tensor,
        no_speech: Tensor,
        agreed: Sequence[Agreed] = (),
    ) -> None:
        """As in `Lane`: logits [n, V], no_speech [n]."""
        for ticket in tickets:
            self.finished_count[ticket.slot - self.offset] = 0
        super().start(tickets, logits, no_speech, agreed)

    def _pick(self, layout: Layout, logits: Tensor, state: TimestampState, fresh: bool) -> None:
        """Choose the best continuations of each slot's beams; logits [R, V]."""
        width, block = self.width, layout.block
        if layout.timestamps:
            apply_timestamp_rules(logits, state, self.vocabulary)
        logprobs, tokens = logits.log_softmax(dim=-1).topk(width + 1, dim=-1)  # [R, width + 1]
        scores = self.logprobs[block][:, None] + logprobs
        scores = scores.unflatten(0, (-1, width))  # [S, width, width + 1]
        if fresh:  # all beams are still equal
            scores[:, 1:] = NEVER
        # at most `width` texts can end before `width` others are found
        order = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
        scores, ranked = order.values[:, : 2 * width], order.indices[:, : 2 * width]
        tokens, logprobs = (
            t.unflatten(0, (-1, width)).flatten(1).gather(1, ranked) for t in (tokens, logprobs)
        )
        slots = torch.arange(len(ranked), device=ranked.device)
        sources = ranked // (width + 1) + slots[:, None] * width  # rows within the block
        ends = tokens == self.vocabulary.eot
        others = (~ends).cumsum(dim=1)
        over = self.finished_count[self._places(layout)] >= self.max_finished

        self._finish(layout, ends & (others < width) & ~over[:, None], sources, scores, logprobs)

        column = torch.arange(ranked.shape[1], device=ranked.device)
        kept = ~ends & (others <= width)
        chosen = column.masked_fill(~kept, ranked.shape[1]).sort(dim=-1).values[:, :width]
        live = ~over.repeat_interleave(width)
        own = layout.rows.ids - block.start
        rows = torch.where(live, sources.gather(1, chosen).flatten(), own)
        self._continue(layout, rows)
        kept_scores = scores.gather(1, chosen).flatten()
        self.logprobs[block] = torch.where(live, kept_scores, self.logprobs[block])
        if layout.logprobs:
            own_logprobs = logprobs.gather(1, chosen).flatten().float()
            self.token_logprobs[layout.rows.ids, state.count] = own_logprobs
        self._advance(layout, tokens.gather(1, chosen).flatten(), state)
        state.count.sub_(torch.where(live, 0, 1))  # a finished search does not change

    def _places(self, layout: Layout) -> slice:
        return slice(layout.block.start // self.width, layout.block.stop // self.width)

    def _finish(
        self, layout: Layout, new: Tensor, sources: Tensor, scores: Tensor, logprobs: Tensor
    ) -> None:
        """Keep texts that have just ended, best first, while there is room. All [S, n]: new bool,
        sources int64, rows of the block; scores, and logprobs of the last token, floating.
        """
        places, block = self._places(layout), layout.block
        count = self.finished_count[places]
        target = new.cumsum(dim=1) - 1 + count[:, None]
        target = target.masked_fill(~new | (target >= self.max_finished), self.max_finished)
        where = torch.arange(places.start, places.stop, device=new.device)[:, None]
        self.finished[where, target] = self.sampled[block][sources]
        self.finished_lengths[where, target] = self.stamps.count[block][sources]
        self.finished_scores[where, target] = scores
        if layout.logprobs:
            self.finished_logprobs[where, target] = self.token_logprobs[block][sources]
            ends = self.stamps.count[block][sources]
            self.finished_logprobs[where, target, ends] = logprobs.float()
        self.finished_count[places] = (count + new.sum(dim=1)).clamp_(max=self.max_finished)

    def _continue(self, layout: Layout, sources: Tensor) -> None:
        """Row i of the block becomes a copy of its row sources[i], [R] int64."""
        block, begin = layout.block, layout.block.start
        ask = self.graphs is None and sources.device.type == "cpu"
        self.cache.self_.reorder(layout.rows.ids, begin + sources, layout.extent, ask)
        asked = (self.token_logprobs,) if layout.logprobs else ()
        for t in (*asked, self.sampled, *self.stamps.tensors()):
            t[block] = t[block][sources]

    def _look(self, here: slice, counts: NDArray[np.int64], limits: NDArray[np.int64]) -> BeamLook:
        rows = slice(here.start * self.width, here.stop * self.width)
        finished = (self.finished, self.finished_lengths, self.finished_scores)
        each = self.finished_logprobs[..., : self.limit if self.asked else 0]
        places = [tensor[here] for tensor in (*finished, each, self.finished_count)]
        texts = BeamTexts(*[*self._texts(here), self.stamps.count[rows], *places])
        return BeamLook(self.tickets, texts, counts, limits, self.vocabulary.eot)
