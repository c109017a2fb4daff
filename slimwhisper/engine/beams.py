"""Beam search with patience (arXiv 2204.05424), for all windows of a lane in parallel.

The rules are those of `whisper.decoding.BeamSearchDecoder`: every beam proposes its `width` + 1
best continuations. In order of score, those that end are finished texts, and the first `width`
others are the new beams. A window is done when it has `beams * patience` finished texts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.plan import SelfCache
from slimwhisper.engine.rows import Call, RowState
from slimwhisper.engine.rules import NEVER, apply_timestamp_rules
from slimwhisper.engine.sampling import append
from slimwhisper.engine.snapshots import BeamSnapshot, BeamTexts
from slimwhisper.engine.tickets import Ticket
from slimwhisper.tokens.vocabulary import Vocabulary


class BeamSampler:
    """A `Sampler` whose rows are the beams of their window."""

    def __init__(
        self,
        state: RowState,
        vocabulary: Vocabulary,
        cache: SelfCache,
        patience: float,
        skip: bool,
    ) -> None:
        """skip: beams that go on in their own row need no copy; on a GPU that would be a sync."""
        self.state, self.vocabulary, self.cache, self.skip = state, vocabulary, cache, skip
        self.width, device = state.width, state.positions.device
        self.max_finished = round(self.width * patience)  # finished texts that end a search
        # the last entry takes the texts that finish too late, and is never read
        shape = (len(state.texts.no_speech), self.max_finished + 1)
        self.finished = torch.zeros((*shape, state.limit), dtype=torch.int64, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.scores = torch.zeros(shape, dtype=torch.float32, device=device)
        self.logprobs = torch.zeros((*shape, state.limit), dtype=torch.float32, device=device)
        self.count = torch.zeros(shape[0], dtype=torch.int64, device=device)

    def by_place(self, logprobs: bool) -> Sequence[Tensor]:
        """The finished texts, each [places, ...]."""
        each = (self.logprobs,) if logprobs else ()
        return (*each, self.finished, self.lengths, self.scores, self.count)

    def begin(self, first: int, count: int) -> None:
        """No text is finished."""
        self.count[first : first + count] = 0

    def choose(self, call: Call, logits: Tensor, fresh: bool) -> None:
        """Choose the best continuations of each window's beams; logits [R, V]."""
        width, block, texts = self.width, call.block, self.state.texts
        stamps = self.state.stamps.view(block)
        if call.timestamps:
            apply_timestamp_rules(logits, stamps, self.vocabulary)
        logprobs, tokens = logits.log_softmax(dim=-1).topk(width + 1, dim=-1)  # [R, width + 1]
        scores = texts.logprobs[block][:, None] + logprobs
        scores = scores.unflatten(0, (-1, width))  # [W, width, width + 1]
        if fresh:  # all beams are still equal
            scores[:, 1:] = NEVER
        # at most `width` texts can end before `width` others are found
        order = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
        scores, ranked = order.values[:, : 2 * width], order.indices[:, : 2 * width]
        tokens, logprobs = (
            t.unflatten(0, (-1, width)).flatten(1).gather(1, ranked) for t in (tokens, logprobs)
        )
        windows = torch.arange(len(ranked), device=ranked.device)
        sources = ranked // (width + 1) + windows[:, None] * width  # rows within the block
        ends = tokens == self.vocabulary.eot
        others = (~ends).cumsum(dim=1)
        over = self.count[self._places(call)] >= self.max_finished

        self._finish(call, ends & (others < width) & ~over[:, None], sources, scores, logprobs)

        column = torch.arange(ranked.shape[1], device=ranked.device)
        kept = ~ends & (others <= width)
        chosen = column.masked_fill(~kept, ranked.shape[1]).sort(dim=-1).values[:, :width]
        live = ~over.repeat_interleave(width)
        own = call.here - block.start
        rows = torch.where(live, sources.gather(1, chosen).flatten(), own)
        self._continue(call, rows)
        kept_scores = scores.gather(1, chosen).flatten()
        texts.logprobs[block] = torch.where(live, kept_scores, texts.logprobs[block])
        if call.logprobs:
            own_logprobs = logprobs.gather(1, chosen).flatten().float()
            texts.token_logprobs[call.here, stamps.count] = own_logprobs
        append(self.state, call, tokens.gather(1, chosen).flatten(), stamps, self.vocabulary)
        stamps.count.sub_(torch.where(live, 0, 1))  # a finished search does not change

    def _places(self, call: Call) -> slice:
        return slice(call.block.start // self.width, call.block.stop // self.width)

    def _finish(
        self, call: Call, new: Tensor, sources: Tensor, scores: Tensor, logprobs: Tensor
    ) -> None:
        """Keep texts that have just ended, best first, while there is room. All [W, n]: new bool,
        sources int64, rows of the block; scores, and logprobs of the last token, floating.
        """
        places, block, texts = self._places(call), call.block, self.state.texts
        count, held = self.count[places], self.state.stamps.count[block][sources]
        target = new.cumsum(dim=1) - 1 + count[:, None]
        target = target.masked_fill(~new | (target >= self.max_finished), self.max_finished)
        where = torch.arange(places.start, places.stop, device=new.device)[:, None]
        self.finished[where, target] = texts.sampled[block][sources]
        self.lengths[where, target] = held
        self.scores[where, target] = scores
        if call.logprobs:
            self.logprobs[where, target] = texts.token_logprobs[block][sources]
            self.logprobs[where, target, held] = logprobs.float()
        self.count[places] = (count + new.sum(dim=1)).clamp_(max=self.max_finished)

    def _continue(self, call: Call, sources: Tensor) -> None:
        """Row i of the block becomes a copy of its row sources[i], [R] int64."""
        block, texts = call.block, self.state.texts
        held = self.state.positions[block] + 1  # the last token is not kept yet
        self.cache.follow(call.rows, sources, held, self.skip)
        each = (texts.token_logprobs,) if call.logprobs else ()
        for t in (*each, texts.sampled, *self.state.stamps.tensors()):
            t[block] = t[block][sources]

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> BeamSnapshot:
        """As they are now; on a GPU, once it has come so far."""
        places = slice(first, first + len(tickets))
        rows = slice(places.start * self.width, places.stop * self.width)
        texts = self.state.texts.of(first, len(tickets), self.width, logprobs)
        each = self.logprobs[places, :, : self.state.limit if logprobs else 0]
        found = BeamTexts(
            last=texts.last,
            sampled=texts.sampled,
            logprobs=texts.logprobs,
            token_logprobs=texts.token_logprobs,
            no_speech=texts.no_speech,
            lengths=self.state.stamps.count[rows],
            finished=self.finished[places],
            finished_lengths=self.lengths[places],
            finished_scores=self.scores[places],
            finished_logprobs=each,
            finished_count=self.count[places],
            table=self.state.table[rows],
        )
        return BeamSnapshot(tickets, found, self.vocabulary.eot)
