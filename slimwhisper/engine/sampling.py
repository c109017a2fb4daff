"""The sampler interface, and greedy and random sampling: one token for every row of a batch."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.engine.filters.rules import Texts, log_probability
from slimwhisper.engine.filters.table import bonus_of
from slimwhisper.engine.rows import RowState, StepBatch
from slimwhisper.engine.snapshots import Snapshot
from slimwhisper.engine.tickets import Ticket
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.splitmix64 import uniform


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

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> Snapshot:
        """The texts of windows first, first + 1 ... as they are now, copied asynchronously on a
        GPU; logprobs: with those of each token.
        """
        return Snapshot(tickets, self.state.texts_of(first, len(tickets), logprobs), self.eot)


class GreedySampler(Sampler):
    """The most likely token of each row, or, at a temperature above 0, a random one."""

    def __init__(self, state: RowState, eot: int, kernels: Kernels) -> None:
        super().__init__(state, eot)
        self.kernels = kernels

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """logits [R, V]."""
        buffers, block, texts = self.state.texts, batch.block, self.state.before_next(batch)
        tokens, logprobs = self.decide(batch, logits, texts)
        if not fresh:  # a finished text does not change while its neighbours continue
            ended = buffers.last[block] == self.eot
            tokens = tokens.masked_fill(ended, self.eot)
            logprobs = logprobs.masked_fill(ended, 0)
        buffers.logprobs[block] += logprobs
        if batch.logprobs:
            buffers.token_logprobs[batch.indices, texts.counts] = logprobs.float()
        self.state.append(batch, texts, tokens)

    def decide(self, batch: StepBatch, logits: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
        """The tokens of the rows and their log-probabilities, [R] each; logits [R, V]."""
        filters, rows = self.state.filters, batch.sampling_rows
        if rows is None:
            return filters.most_likely(batch.filters, logits, texts, self.kernels)
        for f, setting in batch.filters.items():
            f.apply(logits, texts, setting)
        temperatures = self.state.temperatures[batch.indices][rows]
        keys = self.state.keys[batch.indices, texts.counts]
        waits = waiting_times(keys[rows], logits.shape[1])

        def draw(logits: Tensor, tokens: Tensor, among: Tensor | None = None) -> Tensor:
            """The tokens [R], replaced where the temperature is above 0."""
            drawn = fastest(logits[rows], temperatures, waits, among)
            tokens[rows] = torch.where(temperatures > 0, drawn, tokens[rows])
            return tokens

        tokens = draw(logits, logits.argmax(dim=-1))
        logprobs, bonus = log_probability(logits, tokens), bonus_of(batch.filters)
        if bonus is None:
            return tokens, logprobs
        return bonus.prefer(texts.states[bonus], logits, tokens, logprobs, draw)


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
    weights = (logits / temperatures[:, None]).softmax(dim=-1) / waits
    return (weights if among is None else weights * among).argmax(dim=-1)
