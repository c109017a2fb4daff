"""Samplers choose the next token of every row of a batch: greedily, at random, or by beams.

Random numbers are those of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). They depend on a key
and a count alone, on every device, whichever rows are computed beside them.

Beam search has patience (arXiv 2204.05424), for all windows of a row group in parallel. The rules
are those of `whisper.decoding.BeamSearchDecoder`: every beam proposes its `width` + 1 best
continuations. In order of score, those that end are finished texts, and the first `width` others
are the new beams. A window is done when it has `beams * patience` finished texts.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import SelfCache
from slimwhisper.engine.filters import NEVER, Draws, Texts, bonus_of
from slimwhisper.engine.rows import BeamSnapshot, FinishedTexts, RowState, Snapshot, StepBatch
from slimwhisper.engine.scheduler import Ticket

GAMMA = -0x61C8864680B583EB  # the golden ratio, as int64
STEPS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))


def uniform(keys: Tensor, counts: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Numbers in (0, 1), never 0 or 1, of `bits` bits: number `counts` (the first is 1) of the
    generators seeded with `keys`.

    keys, counts: int64 that broadcast -> their shape, in `dtype`, which must hold `bits` + 1 bits.
    """
    z = keys + counts * GAMMA
    for shift, factor in STEPS:
        z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * factor  # >> keeps the sign; & drops it
    return ((z >> 64 - bits & (1 << bits) - 1).to(dtype) + 0.5) * 2.0**-bits


class Sampler:
    """Chooses the next tokens of a group's rows. A new search is a class with these methods."""

    def __init__(self, state: RowState, eot: int) -> None:
        self.state, self.eot = state, eot

    def begin(self, first: int, count: int) -> None:
        """Start the texts of windows first ... first + count - 1."""

    @abstractmethod
    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """Choose and append the next token of each row; logits [R, V] may be changed. fresh: it is
        each text's first.
        """

    def by_window(self) -> Sequence[Tensor]:
        """Its state, [windows, ...] each."""
        return ()

    def snapshot(self, first: int, tickets: Sequence[Ticket]) -> Snapshot:
        """The texts of the tickets, whose windows are first, first + 1 ..., as they are now, copied
        asynchronously on a GPU.
        """
        return Snapshot(tickets, self.state.texts_of(first, tickets), self.eot)


class GreedySampler(Sampler):
    """The most likely token of each row, or, at a temperature above 0, a random one."""

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """logits [R, V]."""
        state, rows, draws = self.state, batch.sampling_rows, None
        buffers, block, texts = state.texts, batch.block, state.before_next(batch)
        if rows is not None:
            keys = state.keys[batch.indices, texts.counts]
            draws = make_draws(state.temperatures[batch.indices], keys, rows)
        tokens, logprobs = state.filters.choose(batch.filters, logits, texts, draws)
        if not fresh:  # a finished text does not change while its neighbours continue
            ended = buffers.last[block] == self.eot
            tokens = tokens.masked_fill(ended, self.eot)
            logprobs = logprobs.masked_fill(ended, 0)
        buffers.logprobs[block] += logprobs
        if batch.logprobs:
            buffers.token_logprobs[batch.indices, texts.counts] = logprobs.float()
        state.append(batch, texts, tokens)


def waiting_times(keys: Tensor, size: int) -> Tensor:
    """Random waiting times of the tokens, with rate 1: keys [R] int64 -> [R, size] floating."""
    index = torch.arange(1, size + 1, device=keys.device)
    # MPS has no float64
    bits, dtype = (23, torch.float32) if keys.device.type == "mps" else (53, torch.float64)
    return -uniform(keys[:, None], index, bits, dtype).log()


def fastest(
    logits: Tensor, temperatures: Tensor, waits: Tensor, among: Tensor | None = None
) -> Tensor:
    """Sample one token per row [R]: logits [R, V], temperatures [R] > 0.

    Every token gets a random waiting time, exponential with its probability as the rate, and the
    shortest wins. So rounding of the weights matters only in near ties. With inverse transform
    sampling, the rounding of a cumulative sum of 50,000 probabilities would change tokens.

    waits: [R, V] of `waiting_times`. among: [V] int64: 1 for the tokens to choose from, else 0;
    None: all.
    """
    if among is not None:
        logits = logits.masked_fill(among == 0, NEVER)
    return ((logits / temperatures[:, None]).softmax(dim=-1) / waits).argmax(dim=-1)


def make_draws(temperatures: Tensor, keys: Tensor, rows: Tensor) -> Draws:
    """temperatures [R] float32, keys [R] int64; rows [n] int64: those that may be above 0."""

    @cache
    def waits(size: int) -> Tensor:
        """For all calls."""
        return waiting_times(keys[rows], size)

    def replaced(logits: Tensor, tokens: Tensor, among: Tensor | None) -> Tensor:
        """As `Draws` says."""
        heat = temperatures[rows]
        drawn = fastest(logits[rows], heat, waits(logits.shape[1]), among)
        tokens[rows] = torch.where(heat > 0, drawn, tokens[rows])
        return tokens

    return Draws(temperatures, keys, replaced)


class Ranked(NamedTuple):
    """The best continuations of W windows, the best first: [W, 2 * width] each."""

    sources: Tensor  # int64: the row of the block that is continued
    tokens: Tensor  # int64
    logprobs: Tensor  # floating: of the tokens
    sums: Tensor  # floating: of the texts with them
    bonuses: Tensor | None  # floating: what the texts have gained with them; None: nothing


class BeamSampler(Sampler):
    """A `Sampler` whose rows are the beams of their window."""

    def __init__(
        self, state: RowState, eot: int, cache: SelfCache, patience: float, skip: bool
    ) -> None:
        """skip: do not copy beams that stay in their row; on a GPU that would be a sync."""
        super().__init__(state, eot)
        self.cache, self.skip = cache, skip
        self.width, device = state.width, state.positions.device
        self.max_finished = round(self.width * patience)  # finished texts that end a search
        shape = (len(state.texts.no_speech), self.max_finished + 1)
        self.finished = FinishedTexts(
            tokens=torch.zeros((*shape, state.limit), dtype=torch.int64, device=device),
            lengths=torch.zeros(shape, dtype=torch.int64, device=device),
            scores=torch.zeros(shape, dtype=torch.float32, device=device),
            bonuses=torch.zeros(shape, dtype=torch.float32, device=device),
            logprobs=torch.zeros((*shape, state.limit), dtype=torch.float32, device=device),
            counts=torch.zeros(shape[0], dtype=torch.int64, device=device),
        )

    def by_window(self) -> Sequence[Tensor]:
        """The finished texts."""
        return self.finished

    def begin(self, first: int, count: int) -> None:
        """No text is finished."""
        self.finished.counts[first : first + count] = 0

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """Extend each window's beams by their best continuations; logits [R, V]."""
        texts = self.state.before_next(batch)
        ranked = self._rank(batch, texts, logits, fresh)
        ends = ranked.tokens == self.eot
        others = (~ends).cumsum(dim=1)
        done = self.finished.counts[self._windows(batch)] >= self.max_finished
        self._finish(batch, ranked, ends & (others < self.width) & ~done[:, None])
        self._continue(batch, ranked, ~ends & (others <= self.width), ~done)

    def _rank(self, batch: StepBatch, texts: Texts, logits: Tensor, fresh: bool) -> Ranked:
        """The continuations by their score: the log-probability of the text, and its bonuses."""
        width, in_use, bonuses = self.width, batch.filters, None
        tokens, logprobs = self.state.filters.best(in_use, logits, texts, width + 1)
        bonus = bonus_of(in_use)
        if bonus is not None:
            bonuses = bonus.gained(texts.states[bonus], tokens).to(logprobs.dtype)
        sums = self.state.texts.logprobs[batch.block][:, None] + logprobs
        scores = sums if bonuses is None else sums + bonuses
        scores = scores.unflatten(0, (-1, width))  # [W, width, width + 1]
        if fresh:  # all beams are still equal
            scores[:, 1:] = NEVER
        # at most `width` texts can end before `width` others are found
        order = scores.flatten(1).argsort(dim=-1, descending=True, stable=True)[:, : 2 * width]

        def in_order(t: Tensor) -> Tensor:
            """[R, width + 1] -> [W, 2 * width]."""
            return t.unflatten(0, (-1, width)).flatten(1).gather(1, order)

        return Ranked(
            sources=order // (width + 1) + batch.indices[::width, None] - batch.block.start,
            tokens=in_order(tokens),
            logprobs=in_order(logprobs),
            sums=in_order(sums),
            bonuses=None if bonuses is None else in_order(bonuses),
        )

    def _windows(self, batch: StepBatch) -> slice:
        return slice(batch.block.start // self.width, batch.block.stop // self.width)

    def _finish(self, batch: StepBatch, ranked: Ranked, new: Tensor) -> None:
        """Store texts that have just ended, best first, while there is room: new [W, n] bool."""
        windows, block, texts = self._windows(batch), batch.block, self.state.texts
        finished, count = self.finished, self.finished.counts[windows]
        lengths = self.state.counts[block][ranked.sources]
        target = new.cumsum(dim=1) - 1 + count[:, None]
        target = target.masked_fill(~new | (target >= self.max_finished), self.max_finished)
        window = torch.arange(windows.start, windows.stop, device=new.device)[:, None]
        finished.tokens[window, target] = texts.sampled[block][ranked.sources]
        finished.lengths[window, target] = lengths
        finished.scores[window, target] = ranked.sums.float()
        if ranked.bonuses is not None:
            finished.bonuses[window, target] = ranked.bonuses.float()
        elif bonus_of(self.state.filters.made.values()) is not None:
            finished.bonuses[window, target] = 0.0
        if batch.logprobs:
            finished.logprobs[window, target] = texts.token_logprobs[block][ranked.sources]
            finished.logprobs[window, target, lengths] = ranked.logprobs.float()
        finished.counts[windows] = (count + new.sum(dim=1)).clamp_(max=self.max_finished)

    def _continue(
        self, batch: StepBatch, ranked: Ranked, continues: Tensor, active: Tensor
    ) -> None:
        """The first `width` of each window that continue are its beams from now on: [W, n] bool.
        active [W] bool: of these windows; the search of the others has ended, and stays.
        """
        block, buffers, active = batch.block, self.state.texts, active.repeat_interleave(self.width)
        column = torch.arange(continues.shape[1], device=continues.device)
        order = column.masked_fill(~continues, len(column)).sort(dim=-1).values[:, : self.width]
        tokens, logprobs, sums, sources = (
            t.gather(1, order).flatten()
            for t in (ranked.tokens, ranked.logprobs, ranked.sums, ranked.sources)
        )
        sources = torch.where(active, sources, batch.indices - block.start)
        lengths = self.state.positions[block] + 1  # the last token is not cached yet
        self.cache.copy_rows(batch.rows, sources, lengths, self.skip)
        each = (buffers.token_logprobs,) if batch.logprobs else ()
        changing = (t for f in batch.filters for t in f.state[f.fixed :])
        for t in (*each, buffers.sampled, self.state.counts, *changing):
            t[block] = t[block][sources]
        texts = self.state.before_next(batch)
        buffers.logprobs[block] = torch.where(active, sums, buffers.logprobs[block])
        if batch.logprobs:
            buffers.token_logprobs[batch.indices, texts.counts] = logprobs.float()
        self.state.append(batch, texts, tokens, active)

    def snapshot(self, first: int, tickets: Sequence[Ticket]) -> BeamSnapshot:
        """The texts as they are now, copied asynchronously on a GPU."""
        windows = slice(first, first + len(tickets))
        rows = slice(windows.start * self.width, windows.stop * self.width)
        texts = self.state.texts_of(first, tickets)
        finished = FinishedTexts(*(t[windows] for t in self.finished))
        recorded = finished.logprobs[..., : texts.token_logprobs.shape[1]]
        finished = finished._replace(logprobs=recorded)
        lengths, table = self.state.counts[rows], self.state.table[rows]
        return BeamSnapshot(tickets, texts, self.eot, finished, lengths, table)
