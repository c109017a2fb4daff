"""Tokens that are drafted by somebody quicker, and checked together (speculative decoding:
Leviathan et al., arXiv 2211.17192).

    tokens      ... t5 | d6 d7 d8          drafted after t5
    one step       t5 d6 d7 d8             four rows of one text
    chosen         d6 d7 x8                by all of Whisper's rules, at each of them
    the text    ... t5 d6 d7 x8            whatever was drafted, as without a draft

Each text keeps what it agrees with, and never waits for another. Random tokens are checked, too:
what is drawn depends on a text's seed and on how many tokens it has, not on how it came so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.base import Step
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.engine.agreement import Agreed
from slimwhisper.engine.drafting.drafter import Behind, Drafter
from slimwhisper.engine.drafting.pace import LENGTHS, Pace
from slimwhisper.engine.rows import Call
from slimwhisper.engine.rules import TimestampState
from slimwhisper.engine.sampling import GreedySampler
from slimwhisper.engine.tickets import Ticket
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

MOST = max(LENGTHS)
HOPED = 0.8  # how often a text's first guesses are expected to be right
FIRST = 4  # guesses that this expectation counts for
MEMORY = 0.9  # how much earlier guesses count for after a step


class Acceptance:
    """How the drafts of the rows fare: numbers on the host."""

    def __init__(self, rows: int) -> None:
        self.known = np.zeros(rows, dtype=np.int64)  # tokens that the drafter has read
        self.rates = np.zeros((rows, 2))  # how many guesses were right, and tried
        self.rounds = self.guessed = self.right = 0  # steps with a draft, and what came of them

    def begin(self, row: int, read: int) -> None:
        """A new text, of which the drafter has read `read` tokens."""
        self.known[row], self.rates[row] = read, (HOPED * FIRST, FIRST)

    def move(self, source: int, target: int) -> None:
        """Row `target` becomes row `source`."""
        self.known[target], self.rates[target] = self.known[source], self.rates[source]

    def hopes(self, count: int) -> NDArray[np.float64]:
        """[count]: how likely the next guess of each row is right."""
        right, tried = self.rates[:count].T
        hopes: NDArray[np.float64] = right / tried
        return hopes

    def note(
        self, drafts: int, lengths: NDArray[np.int64], outcome: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """A step with drafts: lengths [R], tokens of each text before it; outcome [R, 2] as
        `Speculation.outcome`. Returns the tokens gained [R].
        """
        gained, wrong = outcome.T
        right = np.minimum(gained - wrong, drafts)
        count, tried = len(lengths), right + wrong
        self.known[:count] = lengths + np.minimum(right, drafts - 1)
        rates, fresh = self.rates[:count], np.stack([right, tried], axis=1)
        self.rates[:count] = np.where(tried[:, None] > 0, MEMORY * rates + fresh, rates)
        self.rounds += 1
        self.guessed += int(tried.sum())
        self.right += int(right.sum())
        return gained


class Speculation:
    """Drafts and checks the next tokens of a lane of single texts."""

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
        self.pace = Pace(drafter.cost, model.device.type == "cpu")
        rows, device = len(self.state.positions), model.device
        # every token of each text, with its prompt, and room for a draft
        context = model.dims.n_text_ctx + MOST + 1
        self.texts = torch.zeros((rows, context), dtype=torch.int64, device=device)
        # by a step, of each row: tokens gained, and whether a guess was wrong
        self.outcome = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        self.acceptance = Acceptance(rows)

    def by_row(self) -> Sequence[Tensor]:
        """What is kept by row, [rows, ...]."""
        return self.texts, *self.drafter.by_row()

    def begin(self, call: Call, tickets: Sequence[Ticket], agreed: Sequence[Agreed]) -> None:
        """Texts that have begun in the rows of a call; also hands their prompts to the drafter."""
        prompts = [t.window.prompt for t in tickets]
        longest, first = max(map(len, prompts)), call.block.start
        padded = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts])
        padded = padded.to(self.texts.device)
        self.texts[call.block, :longest] = padded
        for row, (prompt, said) in enumerate(zip(prompts, agreed, strict=True), first):
            if said.tokens:
                given = torch.tensor(said.tokens, device=self.texts.device)
                self.texts[row, len(prompt) : len(prompt) + len(given)] = given
            self.acceptance.begin(row, len(prompt))
        self.note_last(call)
        lengths = torch.tensor([len(p) for p in prompts], device=padded.device)
        rows = replace(call.rows, lengths=lengths)
        self.drafter.begin(first, [t.window for t in tickets], padded, rows)

    def note_last(self, call: Call) -> None:
        """Each row has one more token, which was chosen without a draft."""
        block, state = call.block, self.state
        self.texts[call.here, state.positions[block]] = state.texts.last[block]

    def length(self, tickets: Sequence[Ticket]) -> int:
        """How many tokens to draft for the first rows' tickets; 0: none. What follows a draft must
        have a place, in the context and the limits.
        """
        context = self.model.dims.n_text_ctx
        # stopped ones gain nothing more
        left = [MOST if t.full else t.limit - t.count - 1 for t in tickets]
        most = min(*left, *(context - t.length for t in tickets))
        return self.pace.choose(self.acceptance.hopes(len(tickets)), most)

    def behind(self, tickets: Sequence[Ticket]) -> int:
        """How many tokens of the texts the drafter has not read, at most."""
        known = self.acceptance.known
        return max(t.length - int(known[row]) for row, t in enumerate(tickets))

    def note(self, tickets: Sequence[Ticket], drafts: int) -> None:
        """After a step with drafts: count what each text has gained. Waits for the device."""
        lengths = np.array([t.length for t in tickets])
        outcome = self.outcome[: len(tickets)].cpu().numpy()
        for ticket, gained in zip(
            tickets, self.acceptance.note(drafts, lengths, outcome).tolist(), strict=True
        ):
            ticket.length += gained
            ticket.count += gained

    # -- on the device ---------------------------------------------------------------------------

    def run(self, call: Call, behind: int, drafts: int) -> None:
        """Draft, check, and append what was gained: `outcome` tokens of each row."""
        block = call.block
        stamps = [self.state.stamps.view(block)]
        guesses = [self.state.texts.last[block]]
        for i in range(drafts):
            guesses.append(self.guess(call, stamps[-1], behind if i == 0 else 1, i))
            stamps.append(self._after(stamps[-1], guesses[-1]))
        asked = torch.stack(guesses, dim=1)  # [R, drafts + 1]
        chosen, logprobs = self._check(call, asked, stamps)
        gained, wrong = self._accept(asked, chosen, self.state.texts.last[block])
        self.outcome[block] = torch.stack([gained, wrong], dim=1)
        self._append(call, chosen, logprobs, gained, stamps)

    def guess(self, call: Call, stamps: TimestampState, behind: int, after: int) -> Tensor:
        """The drafter's next token [R], `after` tokens after the text, of which it has not read
        the last `behind`.
        """
        block, positions = call.block, self.state.positions[call.block]
        back = torch.arange(after - behind + 1, after + 1, device=positions.device)

        def choose(logits: Tensor) -> Tensor:
            """[R, V] -> [R]."""
            self.state.banned.apply(logits, block)
            return self.sampler.decide(call, logits, stamps)[0]

        at = (positions[:, None] + back).clamp_(min=0)
        read = Behind(call.rows, call.here, self.texts[block], at, call.extent)
        tokens = self.drafter.guess(read, choose)
        following = (positions + after + 1)[:, None]
        self.texts[block] = self.texts[block].scatter(1, following, tokens[:, None])
        return tokens

    def _after(self, stamps: TimestampState, tokens: Tensor) -> TimestampState:
        """The state after one more token of each row [R]."""
        following = TimestampState(*(t.clone() for t in stamps.tensors()))
        vocabulary = self.vocabulary
        following.advance(tokens, vocabulary.timestamps.start, vocabulary.timestamp_end)
        return following

    def _check(
        self, call: Call, asked: Tensor, stamps: Sequence[TimestampState]
    ) -> tuple[Tensor, Tensor]:
        """What the model says after each of asked [R, T]: tokens [R, T] and log-probabilities."""
        count, tokens = asked.shape
        rows, here = call.rows.spread(tokens), call.here.repeat_interleave(tokens)
        offsets = torch.arange(tokens, device=asked.device)
        positions = self.state.positions[call.block][:, None] + offsets
        positions = positions.clamp_(max=self.model.dims.n_text_ctx - 1).flatten()
        step = Step.at(rows, positions, call.extent, False, self.model.dtype)
        logits = self.model.decoder.step(asked.flatten(), step, self.cache)
        self.state.banned.apply(logits, here)
        drawing = call.drawing
        if drawing is not None:
            drawing = (drawing[:, None] * tokens + offsets).flatten()
        spread = replace(call, rows=rows, here=here, drawing=drawing)
        chosen, logprobs = self.sampler.decide(
            spread, logits, TimestampState(*(c.flatten() for c in _columns(stamps)))
        )
        return chosen.view(count, tokens), logprobs.view(count, tokens)

    def _accept(self, asked: Tensor, chosen: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """How many of chosen [R, T] each text gains: those that its draft led to, up to the end of
        the text; none where it has ended. And whether a guess was wrong: [R] int64, both.
        """
        eot, ended = self.vocabulary.eot, last == self.vocabulary.eot
        same = chosen[:, :-1] == asked[:, 1:]
        led = (same & (chosen[:, :-1] != eot)).long().cumprod(dim=1).sum(dim=1)
        padded = torch.nn.functional.pad(same, (0, 1), value=True)
        wrong = ~padded.gather(1, led[:, None]).squeeze(1) & ~ended
        return (1 + led).masked_fill_(ended, 0), wrong.long()

    def _append(
        self,
        call: Call,
        chosen: Tensor,
        logprobs: Tensor,
        gained: Tensor,
        stamps: Sequence[TimestampState],
    ) -> None:
        """Append the first gained [R] of chosen [R, T], with their log-probabilities, to the rows.

        What is written after them is overwritten by the next step.
        """
        block, state, texts = call.block, self.state, self.state.texts
        own, width = state.stamps.view(block), chosen.shape[1]
        offsets = torch.arange(width, device=chosen.device)
        new, ended = offsets < gained[:, None], gained == 0
        texts.logprobs[block] += logprobs.masked_fill(~new, 0).sum(dim=1).to(texts.logprobs.dtype)
        counts = (own.count[:, None] + offsets).clamp_(max=state.limit - 1)
        _overwrite(texts.sampled, block, counts, new, chosen)
        if call.logprobs:
            _overwrite(texts.token_logprobs, block, counts, new, logprobs)
        places = (state.positions[block][:, None] + 1 + offsets).clamp_(max=self.texts.shape[1] - 1)
        _overwrite(self.texts, block, places, new, chosen)
        index = (gained - 1).clamp_(min=0)[:, None]
        newest = chosen.gather(1, index).squeeze(1)
        texts.last[block] = torch.where(ended, texts.last[block], newest)
        state.positions[block] += gained
        before = TimestampState(*(c.gather(1, index).squeeze(1) for c in _columns(stamps)))
        following = self._after(before, newest)
        for mine, moved in zip(own.tensors(), following.tensors(), strict=True):
            mine.copy_(torch.where(ended, mine, moved))
        # rows that are only there to fill a graph must stay within their buffers
        state.positions[block].clamp_(max=state.context - 1)
        own.count.clamp_(max=state.limit - 1)


def _overwrite(kept: Tensor, block: slice, at: Tensor, where: Tensor, values: Tensor) -> None:
    """kept[block][r, at[r, i]] = values[r, i], both [R, T], where `where` [R, T] says so."""
    old = kept[block].gather(1, at)
    kept[block] = kept[block].scatter(1, at, torch.where(where, values.to(kept.dtype), old))


def _columns(states: Sequence[TimestampState]) -> Iterator[Tensor]:
    """The fields of T states of R rows, [R, T] each."""
    for column in zip(*(s.tensors() for s in states), strict=True):
        yield torch.stack(column, dim=1)
