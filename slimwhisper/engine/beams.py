"""Beam search with patience (arXiv 2204.05424), for all windows of a row group in parallel.

The rules are those of `whisper.decoding.BeamSearchDecoder`: every beam proposes its `width` + 1
best continuations. In order of score, those that end are finished texts, and the first `width`
others are the new beams. A window is done when it has `beams * patience` finished texts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import SelfCache
from slimwhisper.engine.rows import RowState, StepBatch
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
        """skip: do not copy beams that stay in their row; on a GPU that would be a sync."""
        self.state, self.vocabulary, self.cache, self.skip = state, vocabulary, cache, skip
        self.width, device = state.width, state.positions.device
        self.max_finished = round(self.width * patience)  # finished texts that end a search
        # the last entry receives the texts that finish too late, and is never read
        shape = (len(state.texts.no_speech), self.max_finished + 1)
        self.finished = torch.zeros((*shape, state.limit), dtype=torch.int64, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)
        self.scores = torch.zeros(shape, dtype=torch.float32, device=device)
        self.bonuses = torch.zeros(shape, dtype=torch.float32, device=device)
        self.logprobs = torch.zeros((*shape, state.limit), dtype=torch.float32, device=device)
        self.count = torch.zeros(shape[0], dtype=torch.int64, device=device)

    def by_window(self, logprobs: bool) -> Sequence[Tensor]:
        """The finished texts, [windows, ...] each."""
        each = (self.logprobs,) if logprobs else ()
        return (*each, self.finished, self.lengths, self.scores, self.bonuses, self.count)

    def begin(self, first: int, count: int) -> None:
        """No text is finished."""
        self.count[first : first + count] = 0

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """Extend each window's beams by their best continuations; logits [R, V]."""
        width, block, texts = self.width, batch.block, self.state.texts
        stamps = self.state.stamps.view(block)
        if batch.timestamps:
            apply_timestamp_rules(logits, stamps, self.vocabulary)
        logprobs, tokens, bonuses = self._propose(batch, logits)  # [R, width + 1]
        sums = texts.logprobs[block][:, None] + logprobs
        scores = sums if bonuses is None else sums + bonuses
        scores = scores.unflatten(0, (-1, width))  # [W, width, width + 1]
        if fresh:  # all beams are still equal
            scores[:, 1:] = NEVER
        # at most `width` texts can end before `width` others are found
        order = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
        scores, ranked = order.values[:, : 2 * width], order.indices[:, : 2 * width]

        def in_order(t: Tensor) -> Tensor:
            """[R, width + 1] -> [W, 2 * width]."""
            return t.unflatten(0, (-1, width)).flatten(1).gather(1, ranked)

        tokens, logprobs = in_order(tokens), in_order(logprobs)
        if bonuses is not None:
            scores, bonuses = in_order(sums), in_order(bonuses)  # without the bonuses, and they
        index = torch.arange(len(ranked), device=ranked.device)
        sources = ranked // (width + 1) + index[:, None] * width  # rows within the block
        ends = tokens == self.vocabulary.eot
        others = (~ends).cumsum(dim=1)
        done = self.count[self._windows(batch)] >= self.max_finished

        new = ends & (others < width) & ~done[:, None]
        self._finish(batch, new, sources, scores, logprobs, bonuses)

        column = torch.arange(ranked.shape[1], device=ranked.device)
        continues = ~ends & (others <= width)
        chosen = column.masked_fill(~continues, ranked.shape[1]).sort(dim=-1).values[:, :width]
        active = ~done.repeat_interleave(width)
        unchanged = batch.indices - block.start
        rows = torch.where(active, sources.gather(1, chosen).flatten(), unchanged)
        self._continue(batch, rows)
        new_scores = scores.gather(1, chosen).flatten()
        texts.logprobs[block] = torch.where(active, new_scores, texts.logprobs[block])
        if batch.logprobs:
            last_logprobs = logprobs.gather(1, chosen).flatten().float()
            texts.token_logprobs[batch.indices, stamps.count] = last_logprobs
        tokens = tokens.gather(1, chosen).flatten()
        append(self.state, batch, tokens, stamps, self.vocabulary)
        if batch.hot_words and self.state.hot_words is not None:
            self.state.hot_words.advance(block, tokens, active)
        stamps.count.sub_(torch.where(active, 0, 1))  # a finished search does not change

    def _propose(self, batch: StepBatch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The best `width` + 1 tokens of each row, logits [R, V], as [R, width + 1] each: their
        log-probabilities, they, and with hot words what each text gains with them.
        """
        logprobs, words = logits.log_softmax(dim=-1), self.state.hot_words
        if not batch.hot_words or words is None:
            return (*logprobs.topk(self.width + 1, dim=-1), None)
        tokens = words.boosted(logprobs, batch.block).topk(self.width + 1, dim=-1).indices
        bonuses = words.bonuses_with(batch.block, tokens).to(logprobs.dtype)
        return logprobs.gather(1, tokens), tokens, bonuses

    def _windows(self, batch: StepBatch) -> slice:
        return slice(batch.block.start // self.width, batch.block.stop // self.width)

    def _finish(
        self,
        batch: StepBatch,
        new: Tensor,
        sources: Tensor,
        scores: Tensor,
        logprobs: Tensor,
        bonuses: Tensor | None,
    ) -> None:
        """Store texts that have just ended, best first, while there is room. All [W, n]: new bool;
        sources int64, rows of the block; scores, logprobs of the last token, and bonuses, floating.
        """
        windows, block, texts = self._windows(batch), batch.block, self.state.texts
        count, lengths = self.count[windows], self.state.stamps.count[block][sources]
        target = new.cumsum(dim=1) - 1 + count[:, None]
        target = target.masked_fill(~new | (target >= self.max_finished), self.max_finished)
        window = torch.arange(windows.start, windows.stop, device=new.device)[:, None]
        self.finished[window, target] = texts.sampled[block][sources]
        self.lengths[window, target] = lengths
        self.scores[window, target] = scores.float()
        if bonuses is not None:
            self.bonuses[window, target] = bonuses.float()
        elif self.state.hot_words is not None:
            self.bonuses[window, target] = 0.0
        if batch.logprobs:
            self.logprobs[window, target] = texts.token_logprobs[block][sources]
            self.logprobs[window, target, lengths] = logprobs.float()
        self.count[windows] = (count + new.sum(dim=1)).clamp_(max=self.max_finished)

    def _continue(self, batch: StepBatch, sources: Tensor) -> None:
        """Row i of the block becomes a copy of its row sources[i], [R] int64."""
        block, texts = batch.block, self.state.texts
        lengths = self.state.positions[block] + 1  # the last token is not cached yet
        self.cache.copy_rows(batch.rows, sources, lengths, self.skip)
        each: tuple[Tensor, ...] = (texts.token_logprobs,) if batch.logprobs else ()
        if batch.hot_words and (words := self.state.hot_words) is not None:
            each = (*each, words.nodes, words.bonuses)
        for t in (*each, texts.sampled, *self.state.stamps.tensors()):
            t[block] = t[block][sources]

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> BeamSnapshot:
        """The texts as they are now, copied asynchronously on a GPU."""
        windows = slice(first, first + len(tickets))
        rows = slice(windows.start * self.width, windows.stop * self.width)
        texts = self.state.texts_of(first, len(tickets), logprobs)
        each = self.logprobs[windows, :, : self.state.limit if logprobs else 0]
        beams = BeamTexts(
            last=texts.last,
            sampled=texts.sampled,
            logprobs=texts.logprobs,
            token_logprobs=texts.token_logprobs,
            no_speech=texts.no_speech,
            bonuses=texts.bonuses,
            lengths=self.state.stamps.count[rows],
            finished=self.finished[windows],
            finished_lengths=self.lengths[windows],
            finished_scores=self.scores[windows],
            finished_logprobs=each,
            finished_bonuses=None if texts.bonuses is None else self.bonuses[windows],
            finished_count=self.count[windows],
            table=self.state.table[rows],
        )
        return BeamSnapshot(tickets, beams, self.vocabulary.eot)
