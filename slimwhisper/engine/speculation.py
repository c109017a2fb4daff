"""A lane whose next tokens are drafted by somebody quicker, and checked together (speculative
decoding: Leviathan et al., arXiv 2211.17192).

    tokens      ... t5 | d6 d7 d8          drafted after t5
    one step       t5 d6 d7 d8             four rows of one text
    chosen         d6 d7 x8                by all of Whisper's rules, at each of them
    the text    ... t5 d6 d7 x8            whatever was drafted, as without a draft

Each text keeps what it agrees with, and never waits for another. Random tokens are checked, too:
what is drawn depends on a text's seed and on how many tokens it has, not on how it came so far.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.plan import CrossCache
from slimwhisper.engine.drafter import Behind, Drafter
from slimwhisper.engine.drafts import Agreed
from slimwhisper.engine.lanes import Lane
from slimwhisper.engine.pace import LENGTHS, Pace
from slimwhisper.engine.places import Layout, Places, Ticket
from slimwhisper.engine.rules import TimestampState
from slimwhisper.kernels.graphs import Graphs
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary

MOST = max(LENGTHS)
HOPED = 0.8  # how often a text's first guesses are expected to be right
FIRST = 4  # guesses that this expectation counts for
MEMORY = 0.9  # how much earlier guesses count for after a step


class SpeculativeLane(Lane):
    """A lane of single texts with a drafter."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        cross: CrossCache,
        places: Places,
        drafter: Drafter,
        graphs: Graphs | None = None,
    ) -> None:
        assert places.width == 1
        super().__init__(model, vocabulary, cross, places, graphs)
        self.drafter, self.pace = drafter, Pace(drafter.cost, model.device.type == "cpu")
        rows, device = places.capacity, model.device
        # every token of each text, with its prompt, and room for a draft
        context = model.dims.n_text_ctx + MOST + 1
        self.texts = torch.zeros((rows, context), dtype=torch.int64, device=device)
        # by a step, of each row: tokens gained, and whether a guess was wrong
        self.outcome = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        # on the host: tokens that the drafter knows; how many guesses were right, and tried
        self.known = np.zeros(places.capacity, dtype=np.int64)
        self.rates = np.zeros((places.capacity, 2))
        self.rounds = self.guessed = self.right = 0  # steps with a draft, and what came of them

    def nbytes(self) -> int:
        """Also the drafter's."""
        return super().nbytes() + self.drafter.nbytes()

    def row_tensors(self) -> Sequence[Tensor]:
        """Also each text."""
        return *super().row_tensors(), self.texts

    def numbers(self) -> Sequence[NDArray[Any]]:
        """Also what the drafter knows."""
        return *super().numbers(), self.known, self.rates

    def move(self, source: int, target: int) -> None:
        """Also the drafter's row."""
        super().move(source, target)
        self.drafter.move(source, target)

    def start(
        self,
        tickets: Sequence[Ticket],
        logits: Tensor,
        no_speech: Tensor,
        agreed: Sequence[Agreed] = (),
    ) -> None:
        """Also hands the prompts to the drafter."""
        begun = agreed or [Agreed()] * len(tickets)
        prompts = [t.window.prompt for t in tickets]
        longest = max(map(len, prompts))
        padded = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts])
        padded = padded.to(self.texts.device)
        places = [t.slot - self.offset for t in tickets]
        first, last = min(places), max(places) + 1
        self.texts[first:last, :longest] = padded
        for place, prompt, said in zip(places, prompts, begun, strict=True):
            if said.tokens:
                given = torch.tensor(said.tokens, device=self.texts.device)
                self.texts[place, len(prompt) : len(prompt) + len(given)] = given
            self.known[place], self.rates[place] = len(prompt), (HOPED * FIRST, FIRST)
        super().start(tickets, logits, no_speech, agreed)
        ids = torch.arange(first, last, device=padded.device)
        self.texts[ids, self.positions[first:last]] = self.last[first:last]
        lengths = torch.tensor([len(p) for p in prompts], device=padded.device)
        rows = Rows.of(ids, ids + self.offset, lengths)
        self.drafter.begin([t.window for t in tickets], padded, rows)

    def step(self) -> None:
        """One or more tokens for every active row."""
        first, count = self.first, len(self.tickets)
        here, began = slice(first, first + count), time.perf_counter()
        right, tried = self.rates[here].T
        drafts = self.pace.choose(right / tried, self._room(here))
        if drafts:
            self._draft_and_check(here, drafts)
        else:
            super().step()
            rows = self._block(first, count)[0].ids
            self.texts[rows, self.positions[here]] = self.last[here]
        if self.pace.timed:
            self.pace.note(count, drafts, time.perf_counter() - began)

    def _room(self, here: slice) -> int:
        """The longest draft: what follows it must have a place, in the context and the limits."""
        context = self.model.dims.n_text_ctx
        over = self.counts[here] >= self.limits[here]  # stopped: they gain nothing more
        left = np.where(over, MOST, self.limits[here] - self.counts[here] - 1)
        return int(min(left.min(), (context - self.lengths[here]).min()))

    def _draft_and_check(self, here: slice, drafts: int) -> None:
        if self._layout is None:
            self._layout = self._lay_out(here.start, self.tickets)
        layout = self._layout
        layout.extent = int(np.max(self.lengths[here])) + drafts
        behind = int(np.max(self.lengths[here] - self.known[here]))
        if behind > 2:  # after steps without drafts
            self._guess(layout, self.stamps.view(layout.block), behind, 0)
            behind = 1
        if self.graphs is None:
            self._round(layout, behind, drafts)
        else:
            rounds = partial(self._round, behind=behind, drafts=drafts)
            self._replay(self.graphs, layout, (behind, drafts), rounds)
        gained, wrong = self.outcome[here].cpu().numpy().T
        right = np.minimum(gained - wrong, drafts)
        self.known[here] = self.lengths[here] + np.minimum(right, drafts - 1)
        tried = right + wrong
        rates = self.rates[here]
        fresh = np.stack([right, tried], axis=1)
        self.rates[here] = np.where(tried[:, None] > 0, MEMORY * rates + fresh, rates)
        self.rounds += 1
        self.guessed += int(tried.sum())
        self.right += int(right.sum())
        self.lengths[here] += gained
        self.counts[here] += gained

    # -- on the device ---------------------------------------------------------------------------

    def _round(self, layout: Layout, behind: int, drafts: int) -> None:
        """Draft, check, and append what was gained: `gained` tokens of each row."""
        block = layout.block
        states = [self.stamps.view(block)]
        guesses = [self.last[block]]
        for i in range(drafts):
            guesses.append(self._guess(layout, states[-1], behind if i == 0 else 1, i))
            states.append(self._after(states[-1], guesses[-1]))
        asked = torch.stack(guesses, dim=1)  # [R, drafts + 1]
        chosen, logprobs = self._check(layout, asked, states)
        gained, wrong = self._judge(asked, chosen, self.last[block])
        self.outcome[block] = torch.stack([gained, wrong], dim=1)
        self._append(layout, chosen, logprobs, gained, states)

    def _guess(self, layout: Layout, state: TimestampState, behind: int, after: int) -> Tensor:
        """The drafter's next token [R], `after` tokens after the text, of which it has not read
        the last `behind`.
        """
        block = layout.block
        back = torch.arange(after - behind + 1, after + 1, device=self.positions.device)
        positions = (self.positions[block][:, None] + back).clamp_(min=0)

        def choose(logits: Tensor) -> Tensor:
            """[R, V] -> [R]."""
            self.banned.apply(logits, block)
            return self._decide(layout, logits, state)[0]

        read = Behind(layout.rows, self.texts[block], positions, layout.extent)
        tokens = self.drafter.guess(read, choose)
        at = (self.positions[block] + after + 1)[:, None]
        self.texts[block] = self.texts[block].scatter(1, at, tokens[:, None])
        return tokens

    def _after(self, state: TimestampState, tokens: Tensor) -> TimestampState:
        """The state after one more token of each row [R]."""
        following = TimestampState(*(t.clone() for t in state.tensors()))
        stamps = self.vocabulary.timestamps
        following.advance(tokens, stamps.start, self.vocabulary.timestamp_end)
        return following

    def _check(
        self, layout: Layout, asked: Tensor, states: Sequence[TimestampState]
    ) -> tuple[Tensor, Tensor]:
        """What the model says after each of asked [R, T]: tokens [R, T] and log-probabilities."""
        count, tokens = asked.shape
        rows = layout.rows.spread(tokens)
        offsets = torch.arange(tokens, device=asked.device)
        positions = self.positions[layout.block][:, None] + offsets
        positions = positions.clamp_(max=self.model.dims.n_text_ctx - 1).flatten()
        step = Step.at(rows, positions, layout.extent, False, self.model.dtype)
        logits = self.model.decoder.step(asked.flatten(), step, self.cache)
        self.banned.apply(logits, rows.ids)
        drawing = layout.drawing
        if drawing is not None:
            drawing = (drawing[:, None] * tokens + offsets).flatten()
        spread = replace(layout, rows=rows, drawing=drawing)
        chosen, logprobs = self._decide(
            spread, logits, TimestampState(*(c.flatten() for c in _columns(states)))
        )
        return chosen.view(count, tokens), logprobs.view(count, tokens)

    def _judge(self, asked: Tensor, chosen: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
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
        layout: Layout,
        chosen: Tensor,
        logprobs: Tensor,
        gained: Tensor,
        states: Sequence[TimestampState],
    ) -> None:
        """Append the first gained [R] of chosen [R, T], with their log-probabilities, to the rows.

        What is written after them is overwritten by the next step.
        """
        block, state = layout.block, self.stamps.view(layout.block)
        width = chosen.shape[1]
        offsets = torch.arange(width, device=chosen.device)
        new = offsets < gained[:, None]
        self.logprobs[block] += logprobs.masked_fill(~new, 0).sum(dim=1).to(self.logprobs.dtype)
        counts, ended = (state.count[:, None] + offsets).clamp_(max=self.limit - 1), gained == 0
        held = self.sampled[block].gather(1, counts)
        self.sampled[block] = self.sampled[block].scatter(1, counts, torch.where(new, chosen, held))
        if layout.logprobs:
            kept = self.token_logprobs[block].gather(1, counts)
            fresh = torch.where(new, logprobs.to(kept.dtype), kept)
            self.token_logprobs[block] = self.token_logprobs[block].scatter(1, counts, fresh)
        places = (self.positions[block][:, None] + 1 + offsets).clamp_(max=self.texts.shape[1] - 1)
        old = self.texts[block].gather(1, places)
        self.texts[block] = self.texts[block].scatter(1, places, torch.where(new, chosen, old))
        index = (gained - 1).clamp_(min=0)[:, None]
        newest = chosen.gather(1, index).squeeze(1)
        self.last[block] = torch.where(ended, self.last[block], newest)
        self.positions[block] += gained
        before = TimestampState(*(c.gather(1, index).squeeze(1) for c in _columns(states)))
        following = self._after(before, newest)
        for mine, moved in zip(state.tensors(), following.tensors(), strict=True):
            mine.copy_(torch.where(ended, mine, moved))
        if self.graphs is not None:  # a graph's ignored rows must stay within their buffers
            self.positions[block].clamp_(max=self.model.dims.n_text_ctx - 1)
            state.count.clamp_(max=self.limit - 1)


def _columns(states: Sequence[TimestampState]) -> Iterator[Tensor]:
    """The fields of T states of R rows, [R, T] each."""
    for column in zip(*(s.tensors() for s in states), strict=True):
        yield torch.stack(column, dim=1)
