"""Speculative decoding (Leviathan et al., arXiv 2211.17192): next tokens come from a cheaper
drafter and are verified in one step.

    tokens      ... t5 | d6 d7 d8          drafted after t5
    one step       t5 d6 d7 d8             four rows of one text
    chosen         d6 d7 x8                by all of Whisper's rules, at each of them
    the text    ... t5 d6 d7 x8            the same as without a draft, whatever was drafted

Each text accepts its own number of tokens, and never waits for another. Sampled texts are verified
in the same way, as a random token depends only on the text's seed and on its index in the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.rows import DecodeStep
from slimwhisper.engine.drafting.draft_length import LENGTHS, DraftLengthController
from slimwhisper.engine.drafting.drafter import DraftContext, Drafter
from slimwhisper.engine.rows import StepBatch
from slimwhisper.engine.rules import TimestampState
from slimwhisper.engine.sampling import GreedySampler
from slimwhisper.engine.tickets import Ticket
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

MAX_DRAFT = max(LENGTHS)
PRIOR_ACCEPTANCE = 0.8  # the acceptance rate that a new text starts with
PRIOR_COUNT = 4  # it counts for as many drafted tokens
DECAY = 0.9  # factor of the earlier counts after each step


class Acceptance:
    """The acceptance rates of the rows, on the host."""

    def __init__(self, rows: int) -> None:
        self.tokens_read = np.zeros(rows, dtype=np.int64)  # tokens that the drafter has read
        self.counts = np.zeros((rows, 2))  # drafted tokens accepted, and checked
        self.drafted_steps = self.drafted = self.accepted = 0  # totals

    def begin(self, row: int, read: int) -> None:
        """A new text, of which the drafter has read `read` tokens."""
        self.tokens_read[row] = read
        self.counts[row] = PRIOR_ACCEPTANCE * PRIOR_COUNT, PRIOR_COUNT

    def move(self, source: int, target: int) -> None:
        """Row `target` becomes row `source`."""
        self.tokens_read[target] = self.tokens_read[source]
        self.counts[target] = self.counts[source]

    def rates(self, count: int) -> NDArray[np.float64]:
        """[count]: the acceptance rate of each row."""
        accepted, checked = self.counts[:count].T
        rates: NDArray[np.float64] = accepted / checked
        return rates

    def record(
        self, drafts: int, lengths: NDArray[np.int64], outcome: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Record a step with drafts: lengths [R], tokens of each text before it; outcome [R, 2] as
        in `Speculation.outcome`. Returns the tokens gained [R].
        """
        gained, rejected = outcome.T
        accepted = np.minimum(gained - rejected, drafts)
        count, checked = len(lengths), accepted + rejected
        self.tokens_read[:count] = lengths + np.minimum(accepted, drafts - 1)
        counts, fresh = self.counts[:count], np.stack([accepted, checked], axis=1)
        self.counts[:count] = np.where(checked[:, None] > 0, DECAY * counts + fresh, counts)
        self.drafted_steps += 1
        self.drafted += int(checked.sum())
        self.accepted += int(accepted.sum())
        return gained


class Speculation:
    """Drafts and verifies the next tokens of a group with one row per window."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        cache: DecoderCache,
        sampler: GreedySampler,
        drafter: Drafter,
    ) -> None:
        self.model, self.vocabulary, self.cache = model, vocabulary, cache
        self.sampler, self.state, self.drafter = sampler, sampler.state, drafter
        self.draft_lengths = DraftLengthController(drafter.cost, model.device.type == "cpu")
        rows, device = len(self.state.positions), model.device
        # every token of each text, with its prompt, and room for a draft
        context = model.dims.n_text_ctx + MAX_DRAFT + 1
        self.texts = torch.zeros((rows, context), dtype=torch.int64, device=device)
        # of each row, in the last step: tokens gained, and whether a drafted one was rejected
        self.outcome = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        self.acceptance = Acceptance(rows)

    def by_row(self) -> Sequence[Tensor]:
        """Its state and the drafter's, [rows, ...] each."""
        return self.texts, *self.drafter.by_row()

    def begin(self, batch: StepBatch, tickets: Sequence[Ticket], prompts: Tensor) -> None:
        """Start the texts of a batch's rows, here and in the drafter. prompts [R, T] int64: each
        with its accepted draft, and any padding.
        """
        first, windows = batch.block.start, [t.window for t in tickets]
        self.texts[batch.block, : prompts.shape[1]] = prompts
        for row, window in enumerate(windows, first):
            self.acceptance.begin(row, len(window.prompt))
        self.record_last(batch)
        self.drafter.begin(first, windows, prompts, batch.rows)

    def record_last(self, batch: StepBatch) -> None:
        """Record the last token of each row, which was chosen without a draft."""
        block, state = batch.block, self.state
        self.texts[batch.indices, state.positions[block]] = state.texts.last[block]

    def draft_length(self, tickets: Sequence[Ticket]) -> int:
        """How many tokens to draft for the tickets; 0: none. The token after the draft must fit
        into the context and the limits.
        """
        context = self.model.dims.n_text_ctx
        # texts at their limit have stopped: they do not restrict the others
        remaining = [MAX_DRAFT if t.full else t.limit - t.count - 1 for t in tickets]
        most = min(*remaining, *(context - t.length for t in tickets))
        return self.draft_lengths.choose(self.acceptance.rates(len(tickets)), most)

    def unread(self, tickets: Sequence[Ticket]) -> int:
        """The largest number of tokens of a text that the drafter has not read."""
        tokens_read = self.acceptance.tokens_read
        return max(t.length - int(tokens_read[row]) for row, t in enumerate(tickets))

    def record(self, tickets: Sequence[Ticket], drafts: int) -> None:
        """Count the tokens that each text gained in a step with drafts. Waits for the device."""
        lengths = np.array([t.length for t in tickets])
        outcome = self.outcome[: len(tickets)].cpu().numpy()
        for ticket, gained in zip(
            tickets, self.acceptance.record(drafts, lengths, outcome).tolist(), strict=True
        ):
            ticket.count += gained

    # -- on the device ---------------------------------------------------------------------------

    def run(self, batch: StepBatch, unread: int, drafts: int) -> None:
        """Draft, verify, and append the accepted tokens; `outcome` has their number."""
        block = batch.block
        stamps = [self.state.stamps.view(block)]
        guesses = [self.state.texts.last[block]]
        for i in range(drafts):
            guesses.append(self.guess(batch, stamps[-1], unread if i == 0 else 1, i))
            stamps.append(self._after(stamps[-1], guesses[-1]))
        inputs = torch.stack(guesses, dim=1)  # [R, drafts + 1]
        chosen, logprobs = self._verify(batch, inputs, stamps)
        gained, rejected = self._accept(inputs, chosen, self.state.texts.last[block])
        self.outcome[block] = torch.stack([gained, rejected], dim=1)
        self._append(batch, chosen, logprobs, gained, stamps)

    def guess(self, batch: StepBatch, stamps: TimestampState, unread: int, after: int) -> Tensor:
        """The drafter's next token [R], `after` tokens after the text, of which it has not read
        the last `unread`.
        """
        block, positions = batch.block, self.state.positions[batch.block]
        back = torch.arange(after - unread + 1, after + 1, device=positions.device)

        def choose(logits: Tensor) -> Tensor:
            """[R, V] -> [R]."""
            self.state.banned.apply(logits, block)
            return self.sampler.decide(batch, logits, stamps)[0]

        unread_positions = (positions[:, None] + back).clamp_(min=0)
        texts = self.texts[block]
        context = DraftContext(batch.rows, batch.indices, texts, unread_positions, batch.extent)
        tokens = self.drafter.guess(context, choose)
        following = (positions + after + 1)[:, None]
        self.texts[block] = self.texts[block].scatter(1, following, tokens[:, None])
        return tokens

    def _after(self, stamps: TimestampState, tokens: Tensor) -> TimestampState:
        """The state after one more token of each row [R]."""
        following = TimestampState(*(t.clone() for t in stamps.tensors()))
        vocabulary = self.vocabulary
        following.advance(tokens, vocabulary.timestamps.start, vocabulary.timestamp_end)
        return following

    def _verify(
        self, batch: StepBatch, inputs: Tensor, stamps: Sequence[TimestampState]
    ) -> tuple[Tensor, Tensor]:
        """The model's choice after each of inputs [R, T]: tokens [R, T] and log-probabilities."""
        count, tokens = inputs.shape
        rows, indices = batch.rows.spread(tokens), batch.indices.repeat_interleave(tokens)
        offsets = torch.arange(tokens, device=inputs.device)
        positions = self.state.positions[batch.block][:, None] + offsets
        positions = positions.clamp_(max=self.model.dims.n_text_ctx - 1).flatten()
        step = DecodeStep.at(rows, positions, batch.extent, False, self.model.dtype)
        logits = self.model.decoder.step(inputs.flatten(), step, self.cache)
        self.state.banned.apply(logits, indices)
        sampling_rows = batch.sampling_rows
        if sampling_rows is not None:
            sampling_rows = (sampling_rows[:, None] * tokens + offsets).flatten()
        spread = replace(batch, rows=rows, indices=indices, sampling_rows=sampling_rows)
        chosen, logprobs = self.sampler.decide(
            spread, logits, TimestampState(*(c.flatten() for c in _columns(stamps)))
        )
        return chosen.view(count, tokens), logprobs.view(count, tokens)

    def _accept(self, inputs: Tensor, chosen: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """How many of chosen [R, T] each text gains: the accepted draft and one more, up to the end
        of the text; none where it has ended. And whether a token was rejected: [R] int64, both.
        """
        eot, ended = self.vocabulary.eot, last == self.vocabulary.eot
        matches = chosen[:, :-1] == inputs[:, 1:]
        accepted = (matches & (chosen[:, :-1] != eot)).long().cumprod(dim=1).sum(dim=1)
        padded = torch.nn.functional.pad(matches, (0, 1), value=True)
        rejected = ~padded.gather(1, accepted[:, None]).squeeze(1) & ~ended
        return (1 + accepted).masked_fill_(ended, 0), rejected.long()

    def _append(
        self,
        batch: StepBatch,
        chosen: Tensor,
        logprobs: Tensor,
        gained: Tensor,
        stamps: Sequence[TimestampState],
    ) -> None:
        """Append the first `gained` [R] of chosen [R, T], with their log-probabilities."""
        block, state, texts = batch.block, self.state, self.state.texts
        current, width = state.stamps.view(block), chosen.shape[1]
        offsets = torch.arange(width, device=chosen.device)
        new, ended = offsets < gained[:, None], gained == 0
        texts.logprobs[block] += logprobs.masked_fill(~new, 0).sum(dim=1).to(texts.logprobs.dtype)
        counts = (current.count[:, None] + offsets).clamp_(max=state.limit - 1)
        _overwrite(texts.sampled, block, counts, new, chosen)
        if batch.logprobs:
            _overwrite(texts.token_logprobs, block, counts, new, logprobs)
        positions = state.positions[block][:, None] + 1 + offsets
        positions = positions.clamp_(max=self.texts.shape[1] - 1)
        _overwrite(self.texts, block, positions, new, chosen)
        index = (gained - 1).clamp_(min=0)[:, None]
        newest = chosen.gather(1, index).squeeze(1)
        texts.last[block] = torch.where(ended, texts.last[block], newest)
        state.positions[block] += gained
        before = TimestampState(*(c.gather(1, index).squeeze(1) for c in _columns(stamps)))
        following = self._after(before, newest)
        for tensor, updated in zip(current.tensors(), following.tensors(), strict=True):
            tensor.copy_(torch.where(ended, tensor, updated))
        state.stay_within_buffers(block)


def _overwrite(buffer: Tensor, block: slice, index: Tensor, mask: Tensor, values: Tensor) -> None:
    """buffer[block][r, index[r, i]] = values[r, i], where mask[r, i]; all [R, T]."""
    new = torch.where(mask, values.to(buffer.dtype), buffer[block].gather(1, index))
    buffer[block] = buffer[block].scatter(1, index, new)


def _columns(states: Sequence[TimestampState]) -> Iterator[Tensor]:
    """The fields of T states of R rows, [R, T] each."""
    for column in zip(*(s.tensors() for s in states), strict=True):
        yield torch.stack(column, dim=1)
