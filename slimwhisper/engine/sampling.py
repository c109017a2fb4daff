"""Greedy decoding and random draws: one token for every row of a call."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from slimwhisper.engine.rows import Call, RowState
from slimwhisper.engine.rules import (
    TimestampState,
    apply_timestamp_rules,
    log_probability,
    most_likely,
    sample,
)
from slimwhisper.engine.snapshots import Snapshot
from slimwhisper.engine.tickets import Ticket
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.tokens.vocabulary import Vocabulary


class Sampler(Protocol):
    """Chooses the next tokens of a lane's rows. A new search is a class with these methods."""

    def begin(self, first: int, count: int) -> None:
        """New texts in `count` places from `first` on."""

    def choose(self, call: Call, logits: Tensor, fresh: bool) -> None:
        """Choose and append the next token of each row; logits [R, V], without banned tokens, may
        be changed. fresh: it is each text's first.
        """

    def by_place(self, logprobs: bool) -> Sequence[Tensor]:
        """What it keeps by place, [places, ...]; logprobs: of each token, too."""

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> Snapshot:
        """The texts of tickets in places first, first + 1 ...; logprobs: of each token, too."""


class GreedySampler:
    """The most likely token of each row, or, at a temperature above 0, a random one."""

    def __init__(self, state: RowState, vocabulary: Vocabulary, kernels: Kernels) -> None:
        self.state, self.vocabulary, self.kernels = state, vocabulary, kernels

    def begin(self, first: int, count: int) -> None:
        """Nothing is kept."""

    def choose(self, call: Call, logits: Tensor, fresh: bool) -> None:
        """logits [R, V]."""
        texts, block, eot = self.state.texts, call.block, self.vocabulary.eot
        state = self.state.stamps.view(block)
        tokens, logprobs = self.decide(call, logits, state)
        if not fresh:  # a finished text does not change while its neighbours continue
            ended = texts.last[block] == eot
            tokens = tokens.masked_fill(ended, eot)
            logprobs = logprobs.masked_fill(ended, 0)
        texts.logprobs[block] += logprobs
        if call.logprobs:
            texts.token_logprobs[call.here, state.count] = logprobs.float()
        append(self.state, call, tokens, state, self.vocabulary)

    def decide(self, call: Call, logits: Tensor, stamps: TimestampState) -> tuple[Tensor, Tensor]:
        """The tokens of the rows and their log-probabilities, [R] each; logits [R, V]."""
        if call.drawing is None:
            return most_likely(logits, stamps, self.vocabulary, call.timestamps, self.kernels)
        if call.timestamps:
            apply_timestamp_rules(logits, stamps, self.vocabulary)
        rows, tokens = call.drawing, logits.argmax(dim=-1)
        keys, heat = self.state.keys[call.here, stamps.count], self.state.temperatures[call.here]
        drawn = sample(logits[rows], heat[rows], keys[rows])
        tokens[rows] = torch.where(heat[rows] > 0, drawn, tokens[rows])
        return tokens, log_probability(logits, tokens)

    def by_place(self, logprobs: bool) -> Sequence[Tensor]:
        """Nothing is kept."""
        return ()

    def snapshot(self, tickets: Sequence[Ticket], first: int, logprobs: bool) -> Snapshot:
        """As they are now; on a GPU, once it has come so far."""
        texts = self.state.texts.of(first, len(tickets), self.state.width, logprobs)
        return Snapshot(tickets, texts, self.vocabulary.eot)


def append(
    state: RowState, call: Call, tokens: Tensor, stamps: TimestampState, vocabulary: Vocabulary
) -> None:
    """Append tokens [R] int64 to the rows of a call. stamps: those of the rows, in place."""
    block, texts = call.block, state.texts
    texts.sampled[call.here, stamps.count] = tokens
    texts.last[block] = tokens
    state.positions[block] += 1
    stamps.advance(tokens, vocabulary.timestamps.start, vocabulary.timestamp_end)
    # rows that are only there to fill a graph must stay within their buffers
    state.positions[block].clamp_(max=state.context - 1)
    stamps.count.clamp_(max=state.limit - 1)
