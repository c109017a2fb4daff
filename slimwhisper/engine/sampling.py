"""The sampler interface, and greedy and random sampling: one token for every row of a batch."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from slimwhisper.engine.rows import RowState, StepBatch
from slimwhisper.engine.rules import (
    TimestampState,
    apply_timestamp_rules,
    fastest,
    log_probability,
    most_likely,
    waiting_times,
)
from slimwhisper.engine.snapshots import Snapshot
from slimwhisper.engine.tickets import Ticket
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.tokens.vocabulary import Vocabulary


class Sampler(Protocol):
    """Chooses the next tokens of a group's rows. A new search is a class with these methods."""

    def begin(self, first: int, count: int) -> None:
        """Start the texts of windows first ... first + count - 1."""

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """Choose and append the next token of each row; logits [R, V], without banned tokens, may
        be changed. fresh: it is each text's first.
        """

    def by_window(self, logprobs: bool) -> Sequence[Tensor]:
        """Its state, [windows, ...] each; logprobs: with those of each token."""

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> Snapshot:
        """The texts of windows first, first + 1 ...; logprobs: with those of each token."""


class GreedySampler:
    """The most likely token of each row, or, at a temperature above 0, a random one."""

    def __init__(self, state: RowState, vocabulary: Vocabulary, kernels: Kernels) -> None:
        self.state, self.vocabulary, self.kernels = state, vocabulary, kernels

    def begin(self, first: int, count: int) -> None:
        """It has no state of its own."""

    def choose(self, batch: StepBatch, logits: Tensor, fresh: bool) -> None:
        """logits [R, V]."""
        texts, block, eot = self.state.texts, batch.block, self.vocabulary.eot
        state = self.state.stamps.view(block)
        tokens, logprobs = self.decide(batch, logits, state)
        if not fresh:  # a finished text does not change while its neighbours continue
            ended = texts.last[block] == eot
            tokens = tokens.masked_fill(ended, eot)
            logprobs = logprobs.masked_fill(ended, 0)
        texts.logprobs[block] += logprobs
        if batch.logprobs:
            texts.token_logprobs[batch.indices, state.count] = logprobs.float()
        append(self.state, batch, tokens, state, self.vocabulary)
        if batch.hot_words and self.state.hot_words is not None:
            self.state.hot_words.advance(block, tokens)

    def decide(
        self, batch: StepBatch, logits: Tensor, stamps: TimestampState
    ) -> tuple[Tensor, Tensor]:
        """The tokens of the rows and their log-probabilities, [R] each; logits [R, V]. Those of hot
        words count without their bonus.
        """
        words, rows = self.state.hot_words if batch.hot_words else None, batch.sampling_rows
        if rows is None:
            parts = (logits, stamps, self.vocabulary, batch.timestamps, self.kernels)
            tokens, logprobs = most_likely(*parts)
            if words is None:
                return tokens, logprobs
            return words.prefer(words.nodes[batch.block], logits, tokens, logprobs)
        if batch.timestamps:
            apply_timestamp_rules(logits, stamps, self.vocabulary)
        temperatures = self.state.temperatures[batch.indices][rows]
        waits = waiting_times(self.state.keys[batch.indices, stamps.count][rows], logits.shape[1])

        def draw(logits: Tensor, tokens: Tensor, among: Tensor | None = None) -> Tensor:
            """The tokens [R], replaced where the temperature is above 0."""
            drawn = fastest(logits[rows], temperatures, waits, among)
            tokens[rows] = torch.where(temperatures > 0, drawn, tokens[rows])
            return tokens

        tokens = draw(logits, logits.argmax(dim=-1))
        logprobs = log_probability(logits, tokens)
        if words is None:
            return tokens, logprobs
        nodes, is_text = words.nodes[batch.block], words.is_text
        return words.prefer(
            nodes, logits, tokens, logprobs, lambda boosted, best: draw(boosted, best, is_text)
        )

    def by_window(self, logprobs: bool) -> Sequence[Tensor]:
        """It has no state of its own."""
        return ()

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> Snapshot:
        """The texts as they are now, copied asynchronously on a GPU."""
        texts = self.state.texts_of(first, len(tickets), logprobs)
        return Snapshot(tickets, texts, self.vocabulary.eot)


def append(
    state: RowState,
    batch: StepBatch,
    tokens: Tensor,
    stamps: TimestampState,
    vocabulary: Vocabulary,
) -> None:
    """Append tokens [R] int64 to the rows of a batch, and advance their `stamps` in place."""
    block, texts = batch.block, state.texts
    texts.sampled[batch.indices, stamps.count] = tokens
    texts.last[block] = tokens
    state.positions[block] += 1
    stamps.advance(tokens, vocabulary.timestamps.start, vocabulary.timestamp_end)
    state.stay_within_buffers(block)
