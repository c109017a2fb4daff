"""Speculative decoding (Leviathan et al., arXiv 2211.17192).

The next tokens come from a cheaper drafter, and are verified in one step.

    tokens      ... t5 | d6 d7 d8          drafted after t5
    one step       t5 d6 d7 d8             four rows of one text
    chosen         d6 d7 x8                by all of Whisper's rules, at each of them
    the text    ... t5 d6 d7 x8            the same as without a draft, whatever was drafted

Each text accepts its own number of tokens, and never waits for another. Sampled texts are verified
in the same way, as a random token depends only on the text's seed and on its index in the text. How
many tokens are drafted is chosen by measured times, as many as give the most tokens a second.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import CrossCache
from slimwhisper.engine.filters import Texts, advance
from slimwhisper.engine.rows import StepBatch
from slimwhisper.engine.runner import GroupRunner
from slimwhisper.engine.sampling import GreedySampler
from slimwhisper.engine.scheduler import MAX_DRAFT, DraftCounts, Ticket

Choose = Callable[[Tensor], Tensor]  # logits [R, V], floating, may be changed -> tokens [R] int64


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter reads: the last tokens of some texts.

    Attributes:
        rows: The rows of the texts in the caches.
        texts: All tokens of each text, [R, n] int64, its prompt first, with any padding.
        positions: The positions of the last T tokens, [R, T] int64, which the drafter has not read.
        extent: The largest position plus 1, or more.
    """

    rows: Rows
    texts: Tensor
    positions: Tensor
    extent: int

    @property
    def tokens(self) -> Tensor:
        """The tokens that the drafter has not read, [R, T] int64."""
        return self.texts.gather(1, self.positions)


class Drafter(Protocol):
    """What guesses the next tokens of texts. A new kind of draft is a class with these methods.

    Attributes:
        cost: The cost of one more token, relative to a step without drafts.
    """

    cost: float

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        """Start texts.

        Args:
            prompts: The prompts [R, T] int64, padded on the right.
            rows: The rows of the texts in the caches.
        """

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        """Guess the next token of each text.

        Args:
            context: The last tokens of the texts.
            choose: A function that chooses tokens by logits: the best one by the window's rules, or
                the random one that the window will sample.

        Returns:
            The tokens [R] int64.
        """

    def nbytes(self) -> int:
        """Return the bytes of its cache of the texts.

        Returns:
            The number of bytes.
        """


MakeDrafter = Callable[[CrossCache, int, int], Drafter]  # (the cache of the audio, texts, pages)
LENGTHS = (0, 1, 2, 3, 5, MAX_DRAFT)  # of drafts on a CPU
GPU_LENGTHS = (0, 2, 4, MAX_DRAFT)  # each has graphs of its own
TIMED_FIRST = (1, 3, 0)  # are timed once each, in this order
TIME_GROWTH = 1.02  # factor, after each step, of the best time of a length that was used
TIME_DECAY = 0.998  # and of one that was not used, so that it is tried again


class DraftLengthController:
    """Times steps by their number of texts and draft length, and chooses the next length.

    This changes only how many tokens are verified in a step, never a text.
    """

    def __init__(self, cost: float, timed: bool) -> None:
        """cost: of one drafted token, relative to a step without drafts, until times are known.
        timed: whether `record` will be called, as on a CPU.
        """
        self.cost, self.timed, self.lengths = cost, timed, LENGTHS if timed else GPU_LENGTHS
        self._seconds: dict[tuple[int, int], float] = {}

    def choose(self, rates: NDArray[np.float64], most: int) -> int:
        """The length of the next draft, at most `most`; rates [R]: each text's acceptance rate."""
        texts = _bucket(len(rates))
        possible = [k for k in self.lengths if k <= most]
        for k in TIMED_FIRST if self.timed else ():
            if k in possible and (texts, k) not in self._seconds:
                return k
        expected = self._expected(texts)
        return max(possible, key=lambda k: expected_tokens(rates, k) / expected[k], default=0)

    def record(self, texts: int, length: int, seconds: float) -> None:
        """Record the duration of a step."""
        key = _bucket(texts), length
        previous = self._seconds.get(key)
        for other in self._seconds:
            if other[0] == key[0]:
                self._seconds[other] *= TIME_DECAY
        self._seconds[key] = seconds if previous is None else min(previous * TIME_GROWTH, seconds)

    def _expected(self, texts: int) -> dict[int, float]:
        """Seconds of a step by the length of its draft, or relative to one without."""
        times = {k: s for (n, k), s in self._seconds.items() if n == texts}
        if len(times) > 1:  # on the line through the known times
            slope, start = linear_regression(list(times), list(times.values()))
            least = min(times.values())
            line = {k: max(start + slope * k, least) for k in self.lengths}
        else:
            line = {k: (1 + self.cost * k) * times.get(0, 1.0) for k in self.lengths}
        return line | times


def expected_tokens(rates: NDArray[np.float64], length: int) -> float:
    """Tokens that a step gains over all texts: 1 + a + a^2 + ... each (Leviathan et al., eq. 1)."""
    return sum(float((rates**i).sum()) for i in range(length + 1))


def _bucket(texts: int) -> int:
    return (texts - 1).bit_length()


DECAY = 0.9  # factor of the earlier counts after each step


@dataclass(eq=False)
class SpeculativeRunner(GroupRunner):
    """Drafts and verifies the next tokens of a group with one row per window."""

    sampler: GreedySampler
    make_drafter: MakeDrafter

    def __post_init__(self) -> None:
        model, pages = self.model, self.cache.self_.pages.count
        self.drafter = self.make_drafter(self.cache.cross, self.group.capacity, pages)
        self.draft_lengths = DraftLengthController(self.drafter.cost, model.device.type == "cpu")
        rows, device = len(self.state.positions), model.device
        # every token of each text, with its prompt, and room for a draft
        context = model.dims.n_text_ctx + MAX_DRAFT + 1
        self.texts = torch.zeros((rows, context), dtype=torch.int64, device=device)
        # of each row, in the last step: tokens gained, and whether a drafted one was rejected
        self.outcome = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        # steps with drafts; their tokens, up to the first one that was rejected; those accepted
        self.drafted_steps = self.drafted = self.accepted = 0

    def nbytes(self) -> int:
        """Bytes of the texts in forms without pages, and of the drafter's cache."""
        return super().nbytes() + self.drafter.nbytes()

    def by_row(self) -> Sequence[Tensor]:
        """All tensors [rows, ...]."""
        return (*super().by_row(), self.texts)

    def begin(self, batch: StepBatch, tickets: Sequence[Ticket], prompts: Tensor) -> None:
        """Start the texts in the drafter, too."""
        self.texts[batch.block, : prompts.shape[1]] = prompts
        for ticket in tickets:
            ticket.drafts = DraftCounts(read=len(ticket.window.prompt))
        self.record_last(batch)
        self.drafter.begin(prompts, batch.rows)

    def step(self, tickets: Sequence[Ticket]) -> None:
        """Decode several more tokens of each ticket's text, or one, as may be drafted."""
        began, batch = time.perf_counter(), self.batch(tickets)
        drafts = self.draft_length(tickets) if all(f.drafts for f in batch.filters) else 0
        if not drafts:
            super().step(tickets)
            self.record_last(batch)
        else:
            batch.extent = max(t.length for t in tickets) + drafts
            unread = max(t.length - t.drafts.read for t in tickets)
            if unread > 2:  # after steps without drafts
                self.guess(batch, self.state.before_next(batch), unread, 0)
                unread = 1
            self.run(batch, (unread, drafts), lambda batch: self.try_drafts(batch, unread, drafts))
            self.record(tickets, drafts)
        if self.draft_lengths.timed:
            self.draft_lengths.record(len(tickets), drafts, time.perf_counter() - began)

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
        rates = np.array([t.drafts.accepted / t.drafts.checked for t in tickets])
        return self.draft_lengths.choose(rates, most)

    def record(self, tickets: Sequence[Ticket], drafts: int) -> None:
        """Count the tokens that each text gained in a step with drafts. Waits for the device."""
        outcome = self.outcome[: len(tickets)].tolist()
        self.drafted_steps += 1
        for ticket, (gained, rejected) in zip(tickets, outcome, strict=True):
            accepted, counts = min(gained - rejected, drafts), ticket.drafts
            checked = accepted + rejected
            counts.read = ticket.length + min(accepted, drafts - 1)
            if checked:
                counts.accepted = DECAY * counts.accepted + accepted
                counts.checked = DECAY * counts.checked + checked
            self.drafted += checked
            self.accepted += accepted
            ticket.count += gained

    # -- on the device ---------------------------------------------------------------------------

    def try_drafts(self, batch: StepBatch, unread: int, drafts: int) -> None:
        """Draft, verify, and append the accepted tokens; `outcome` has their number."""
        last = self.state.texts.last[batch.block]
        moments, guesses = [self.state.before_next(batch)], [last]
        for i in range(drafts):
            guesses.append(self.guess(batch, moments[-1], unread if i == 0 else 1, i))
            moments.append(moments[-1].after(guesses[-1]))
        inputs, texts = torch.stack(guesses, dim=1), side_by_side(moments)  # [R, drafts + 1, ...]
        chosen, logprobs = self._verify(batch, inputs, texts)
        gained, rejected = self._accept(inputs, chosen, last)
        self.outcome[batch.block] = torch.stack([gained, rejected], dim=1)
        self._append(batch, chosen, logprobs, gained, texts)

    def guess(self, batch: StepBatch, texts: Texts, unread: int, after: int) -> Tensor:
        """The drafter's next token [R], `after` tokens after the text, of which it has not read
        the last `unread`.
        """
        block, positions = batch.block, self.state.positions[batch.block]
        back = torch.arange(after - unread + 1, after + 1, device=positions.device)
        context = DraftContext(
            rows=batch.rows,
            texts=self.texts[block],
            positions=(positions[:, None] + back).clamp_(0, self.model.dims.n_text_ctx - 1),
            extent=batch.extent,
        )
        tokens = self.drafter.guess(context, lambda t: self.sampler.decide(batch, t, texts)[0])
        following = (positions + after + 1)[:, None]
        self.texts[block] = self.texts[block].scatter(1, following, tokens[:, None])
        return tokens

    def _verify(self, batch: StepBatch, inputs: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
        """The model's choice after each of inputs [R, T]: tokens [R, T] and log-probabilities."""
        tokens = inputs.shape[1]
        offsets = torch.arange(tokens, device=inputs.device)
        positions = self.state.positions[batch.block][:, None] + offsets
        positions = positions.clamp_(max=self.model.dims.n_text_ctx - 1).flatten()
        rows, sampling_rows = batch.rows.spread(tokens), batch.sampling_rows
        step = DecodeStep.at(rows, positions, batch.extent, False, self.model.dtype)
        logits = self.model.decoder.step(inputs.flatten(), step, self.cache)
        if sampling_rows is not None:
            sampling_rows = (sampling_rows[:, None] * tokens + offsets).flatten()
        indices = batch.indices.repeat_interleave(tokens)
        spread = replace(batch, rows=rows, indices=indices, sampling_rows=sampling_rows)
        chosen, logprobs = self.sampler.decide(spread, logits, texts.map(lambda t: t.flatten(0, 1)))
        return chosen.view_as(inputs), logprobs.view_as(inputs)

    def _accept(self, inputs: Tensor, chosen: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """How many of chosen [R, T] each text gains: the accepted draft and one more, up to the end
        of the text; none where it has ended. And whether a token was rejected: [R] int64, both.
        """
        ended = last == self.sampler.eot
        matches = chosen[:, :-1] == inputs[:, 1:]
        accepted = (matches & (chosen[:, :-1] != self.sampler.eot)).long().cumprod(dim=1).sum(dim=1)
        padded = torch.nn.functional.pad(matches, (0, 1), value=True)
        rejected = ~padded.gather(1, accepted[:, None]).squeeze(1) & ~ended
        return (1 + accepted).masked_fill_(ended, 0), rejected.long()

    def _append(
        self, batch: StepBatch, chosen: Tensor, logprobs: Tensor, gained: Tensor, texts: Texts
    ) -> None:
        """Append the first `gained` [R] of chosen [R, T], with their log-probabilities. texts [R,
        T, ...]: before each of them.
        """
        block, state, buffers = batch.block, self.state, self.state.texts
        offsets = torch.arange(chosen.shape[1], device=chosen.device)
        new, changed = offsets < gained[:, None], gained > 0
        sums = logprobs.masked_fill(~new, 0).sum(dim=1)
        buffers.logprobs[block] += sums.to(buffers.logprobs.dtype)
        counts = (state.counts[block][:, None] + offsets).clamp_(max=state.limit - 1)
        _overwrite(buffers.sampled, block, counts, new, chosen)
        if batch.logprobs:
            _overwrite(buffers.token_logprobs, block, counts, new, logprobs)
        positions = state.positions[block][:, None] + 1 + offsets
        positions = positions.clamp_(max=self.texts.shape[1] - 1)
        _overwrite(self.texts, block, positions, new, chosen)
        index = (gained - 1).clamp_(min=0)
        newest = chosen.gather(1, index[:, None]).squeeze(1)
        buffers.last[block] = torch.where(changed, newest, buffers.last[block])
        state.positions[block] += gained
        state.counts[block] += gained
        row = torch.arange(len(index), device=index.device)
        before = {f: tuple(t[row, index] for t in columns) for f, columns in texts.states.items()}
        advance(block, before, newest, changed)
        state.stay_within_buffers(block)


def _overwrite(buffer: Tensor, block: slice, index: Tensor, mask: Tensor, values: Tensor) -> None:
    """buffer[block][r, index[r, i]] = values[r, i], where mask[r, i]; all [R, T]."""
    new = torch.where(mask, values.to(buffer.dtype), buffer[block].gather(1, index))
    buffer[block] = buffer[block].scatter(1, index, new)


def side_by_side(moments: Sequence[Texts]) -> Texts:
    """T moments of R texts as [R, T, ...] each."""
    tokens, counts, states = zip(*moments, strict=True)
    columns = {f: zip(*(state[f] for state in states), strict=True) for f in states[0]}
    return Texts(
        torch.stack(tokens, dim=1),
        torch.stack(counts, dim=1),
        {f: tuple(torch.stack(t, dim=1) for t in column) for f, column in columns.items()},
    )
