"""The rows of a group: each text's tokens, sums and rules, a few kB, on the device; and snapshots
of them on the host.

Active rows are the first ones, so that a step reads them in place. When a window ends, the last
window's rows move to its rows; the caches of audio and text stay where they are.

A snapshot is the state at one step. On a GPU it is copied to pinned memory asynchronously, and read
a few steps later, so that neither host nor device waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.cache.base import PAGE, Rows, pages_of
from slimwhisper.devices import padded
from slimwhisper.engine.filters import Filters, InUse, Texts, bonus_of
from slimwhisper.engine.requests import AcceptedPrefix, Decoded, Rules
from slimwhisper.engine.scheduler import Ticket, TicketState
from slimwhisper.model.model import Model

# sampled tokens; the sum of their log-probabilities; their bonuses; the log-probability of each,
# with <|endoftext|>'s, or none
Candidate = tuple[list[int], float, float, list[float]]


class TextBuffers(NamedTuple):
    """The texts of n windows, with `width` rows each: a group's buffers, views, or copies."""

    last: Tensor  # [n * width] int64: each row's last token
    sampled: Tensor  # [n * width, limit] int64
    logprobs: Tensor  # [n * width] floating: sums
    token_logprobs: Tensor  # [n * width, limit] floating; [n * width, 0] if not requested
    no_speech: Tensor  # [n] floating: probabilities
    bonuses: Tensor | None = None  # [n * width] floating: what they gained; None: no text has any


@dataclass(frozen=True, slots=True)
class TicketSnapshot:
    """A ticket's state at one step."""

    ticket: Ticket
    pages: list[list[int]]  # identifies the text: the ticket's next one has another list
    count: int
    length: int
    full: bool

    @property
    def stale(self) -> bool:
        """Whether the text has been answered or restarted since."""
        ticket = self.ticket
        return ticket.state is not TicketState.DECODING or ticket.pages is not self.pages


class Snapshot:
    """The texts of a group's tickets at one step."""

    def __init__(self, tickets: Sequence[Ticket], texts: TextBuffers, eot: int) -> None:
        self.tickets = [TicketSnapshot(t, t.pages, t.count, t.length, t.full) for t in tickets]
        self.eot = eot
        self.width = len(texts.last) // len(tickets)
        self._copied: torch.cuda.Event | None = None
        self.texts = TextBuffers(*map(_to_host, texts))
        if texts.last.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(texts.last.device))

    def ended(self) -> list[int]:
        """The indices of tickets whose texts have ended, without stale ones."""
        if self._copied is not None:  # wait until the copies are complete
            self._copied.synchronize()
        full = np.array([t.full for t in self.tickets])
        ended = np.flatnonzero(full | self._ended().numpy()).tolist()
        return [i for i in ended if not self.tickets[i].stale]

    def result(self, index: int, length_penalty: float | None) -> Decoded:
        """The best text of a ticket that has ended."""
        ticket, candidates = self.tickets[index].ticket, []
        for tokens, logprob, bonus, each in self._texts(index):
            end = tokens.index(self.eot) if self.eot in tokens else len(tokens)
            candidates.append((tokens[:end], logprob, bonus, each[: end + 1]))
        best, logprob, _, each = max(
            candidates, key=lambda t: _score(len(t[0]), t[1] + t[2], length_penalty)
        )
        return Decoded(
            tokens=tuple(best),
            avg_logprob=logprob / (len(best) + 1),
            no_speech_prob=float(self.texts.no_speech[index]),
            temperature=ticket.window.attempt.temperature,
            drafted=ticket.drafted,
            logprobs=tuple(each) if ticket.window.logprobs else (),
        )

    def _ended(self) -> Tensor:
        """[n] bool: all texts of the window have ended."""
        return (self.texts.last == self.eot).unflatten(0, (-1, self.width)).all(dim=1)

    def _rows(self, index: int) -> slice:
        return slice(index * self.width, (index + 1) * self.width)

    def _texts(self, index: int) -> list[Candidate]:
        """A window's candidates."""
        texts, rows, count = self.texts, self._rows(index), self.tickets[index].count
        bonuses = _or_zeros(texts.bonuses, texts.logprobs)
        columns = texts.sampled[:, :count], texts.logprobs, bonuses, texts.token_logprobs[:, :count]
        return list(zip(*(t[rows].tolist() for t in columns), strict=True))


class FinishedTexts(NamedTuple):
    """The texts of n windows that beam search has finished, m of each: buffers, views, or copies.
    The last of the m receives the texts that finish too late, and is never read.
    """

    tokens: Tensor  # [n, m, limit] int64
    lengths: Tensor  # [n, m] int64
    scores: Tensor  # [n, m] floating: sums of log-probabilities
    bonuses: Tensor  # [n, m] floating
    logprobs: Tensor  # [n, m, limit] floating: of each token; [n, m, 0] if not requested
    counts: Tensor  # [n] int64


class BeamSnapshot(Snapshot):
    """The beams and finished texts of a group's tickets at one step."""

    def __init__(
        self,
        tickets: Sequence[Ticket],
        texts: TextBuffers,
        eot: int,
        finished: FinishedTexts,
        lengths: Tensor,
        table: Tensor,
    ) -> None:
        """lengths: tokens of each beam, [n * width] int64. table: [n * width, pages] int64."""
        self.finished = FinishedTexts(*map(_to_host, finished))
        self.lengths, self.table = _to_host(lengths), _to_host(table)
        super().__init__(tickets, texts, eot)

    def read_pages(
        self, ended: Sequence[int], every: int
    ) -> Iterator[tuple[Ticket, list[list[int]]]]:
        """The full pages that each beam of a ticket reads, for tickets that are not `ended` and
        have filled a page since the previous snapshot, `every` tokens ago.
        """
        for index, snap in enumerate(self.tickets):
            whole, tokens = divmod(snap.length - 1, PAGE)
            if index in ended or snap.stale or tokens >= every or not whole:
                continue
            yield snap.ticket, self.table[self._rows(index), :whole].tolist()

    def _ended(self) -> Tensor:
        """[n] bool: the window has enough finished texts."""
        return self.finished.counts >= self.finished.tokens.shape[1] - 1

    def _texts(self, index: int) -> list[Candidate]:
        """The finished texts and, if there are too few, the best unfinished beams."""
        texts, rows, count = self.texts, self._rows(index), int(self.finished.counts[index])
        columns = (t[index, :count].tolist() for t in self.finished[:-1])
        candidates = [
            (tokens[:n], score, bonus, logprobs[: n + 1])
            for tokens, n, score, bonus, logprobs in zip(*columns, strict=True)
        ]
        bonuses = _or_zeros(texts.bonuses, texts.logprobs)
        best = (texts.logprobs[rows] + bonuses[rows]).argsort().flip(0)
        for beam in (rows.start + best[: max(self.width - count, 0)]).tolist():
            length = int(self.lengths[beam])
            tokens = texts.sampled[beam, :length].tolist()
            logprobs = texts.token_logprobs[beam, :length].tolist()
            score, bonus = float(texts.logprobs[beam]), float(bonuses[beam])
            candidates.append((tokens, score, bonus, logprobs))
        return candidates


def _or_zeros(t: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if t is None else t


def _to_host(t: Any) -> Any:
    """An asynchronous copy in pinned memory, with CUDA; of a CPU's tensor, or None, t itself."""
    if t is None or t.device.type != "cuda":
        return None if t is None else t.cpu()
    if not t.numel():
        return torch.empty(t.shape, dtype=t.dtype)
    host = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    return host.copy_(t, non_blocking=True)


def _score(length: int, logprob: float, length_penalty: float | None) -> float:
    """A text's rank: its mean log-probability, or Google NMT's score (arXiv 1609.08144)."""
    if length_penalty is None:
        return logprob / max(length, 1)
    return float(logprob / ((5 + length) / 6) ** length_penalty)


@dataclass(slots=True)
class StepBatch:
    """The rows of one step; only `extent` changes while the tickets stay the same."""

    rows: Rows
    block: slice  # of the group's rows
    indices: Tensor  # [R] int64: the rows in `block`
    extent: int  # tokens to read of each row
    sampling_rows: Tensor | None  # [n] int64 within the block: temperature > 0
    logprobs: bool  # at least one row records each token's
    filters: InUse  # by at least one row


class RowState:
    """Tensors [rows, ...], or [windows, ...] for what the rows of a window have in common."""

    def __init__(self, model: Model, windows: int, width: int, scratch: tuple[int, int]) -> None:
        """scratch: the row and the page of the caches that padding is written to."""
        rows, device = windows * width, model.device
        self.context, self.scratch = model.dims.n_text_ctx, scratch
        self.width = width  # rows of a window
        self.limit = limit = self.context // 2 + 1  # the most tokens that are sampled, plus one

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.texts = TextBuffers(
            last=zeros(rows),
            sampled=zeros(rows, limit),
            logprobs=zeros(rows, dtype=torch.float32),
            token_logprobs=zeros(rows, limit, dtype=torch.float32),
            no_speech=zeros(windows, dtype=torch.float32),
        )
        self.row_indices = torch.arange(rows, device=device)
        self.positions = zeros(rows)
        self.counts = zeros(rows)  # tokens sampled
        self.temperatures = zeros(rows, dtype=torch.float32)
        self.keys = zeros(rows, limit)  # of random draws
        self.filters = Filters(rows, model.vocabulary, device, model.plan.kernels)
        # where the caches have their texts and audio
        pages = pages_of(self.context)
        self.locations = Rows(
            ids=torch.full((rows,), scratch[0], device=device),
            slots=zeros(windows),
            group=width,
            table=torch.full((rows, pages), scratch[1], device=device),
        )

    @property
    def table(self) -> Tensor:
        """[rows, pages] int64: the block table."""
        assert self.locations.table is not None
        return self.locations.table

    def by_row(self) -> Sequence[Tensor]:
        """All tensors [rows, ...]."""
        return (
            self.texts.last,
            self.texts.sampled,
            self.texts.logprobs,
            self.texts.token_logprobs,
            self.positions,
            self.counts,
            self.temperatures,
            self.keys,
            self.locations.ids,
            self.table,
            *self.filters.tensors(),
        )

    def by_window(self) -> Sequence[Tensor]:
        """All tensors [windows, ...]."""
        return self.texts.no_speech, self.locations.slots

    # -- steps ---------------------------------------------------------------------------------

    def batch(self, first: int, count: int, tickets: Sequence[Ticket] = ()) -> StepBatch:
        """The rows of windows first ... first + count - 1. tickets: theirs; a graph has none, as it
        reads all that it needs on the device.
        """
        locations, width = self.locations, self.width
        begin, end = first * width, (first + count) * width
        device, windows = locations.ids.device, [t.window for t in tickets]
        sampled, sampling_rows = [w.attempt.temperature > 0 for w in windows], None
        if any(sampled) and device.type == "cpu":
            sampling_rows = torch.tensor(sampled).repeat_interleave(width).nonzero().flatten()
        elif any(sampled):  # a step of all rows asks the host for nothing
            sampling_rows = self.row_indices[: end - begin]
        return StepBatch(
            rows=Rows(
                ids=locations.ids[begin:end],
                slots=locations.slots[first : first + count],
                group=width,
                table=self.table[begin:end],
                first_slot=_consecutive([t.slot for t in tickets]),
                first_row=_consecutive([t.cache_index for t in tickets], width),
            ),
            block=slice(begin, end),
            indices=self.row_indices[begin:end],
            extent=max((t.length for t in tickets), default=0),
            sampling_rows=sampling_rows,
            logprobs=any(w.logprobs for w in windows),
            filters=self.filters.in_use(rules_of(tickets)),
        )

    def before_next(self, batch: StepBatch) -> Texts:
        """The texts of a batch, as the filters see them."""
        states = {f: tuple(t[batch.block] for t in f.state) for f in batch.filters}
        return Texts(self.texts.sampled[batch.block], self.counts[batch.block], states)

    def append(
        self, batch: StepBatch, texts: Texts, tokens: Tensor, active: Tensor | None = None
    ) -> None:
        """Append tokens [R] int64 to the texts of a batch. active [R] bool: these alone; the tokens
        of the others are written behind their texts, where nothing reads them.
        """
        block = batch.block
        self.texts.sampled[batch.indices, texts.counts] = tokens
        self.texts.last[block] = tokens
        self.positions[block] += 1
        self.counts[block] += 1 if active is None else active
        for f, state in texts.states.items():
            every = zip(f.state, state, f.after(state, tokens), strict=True)
            for tensor, before, after in list(every)[f.fixed :]:
                tensor[block] = after if active is None else torch.where(active, after, before)
        # texts that have ended, and the rows that pad a graph, advance like all others
        self.positions[block].clamp_(max=self.context - 1)
        self.counts[block].clamp_(max=self.limit - 1)

    def texts_of(self, first: int, tickets: Sequence[Ticket]) -> TextBuffers:
        """Views of the texts of the tickets, whose windows are first, first + 1 ..."""
        end, texts = first + len(tickets), self.texts
        rows = slice(first * self.width, end * self.width)
        recorded = self.limit if any(t.window.logprobs for t in tickets) else 0
        bonus = bonus_of(self.filters.made.values())
        return TextBuffers(
            last=texts.last[rows],
            sampled=texts.sampled[rows],
            logprobs=texts.logprobs[rows],
            token_logprobs=texts.token_logprobs[rows, :recorded],
            no_speech=texts.no_speech[first:end],
            bonuses=None if bonus is None else bonus.kept(rows),
        )

    # -- starts and ends -----------------------------------------------------------------------

    def free(self, first: int) -> None:
        """Windows first, first + 1 ... are unused."""
        row, page = self.scratch
        self.locations.ids[first * self.width :], self.table[first * self.width :] = row, page

    def locate(self, tickets: Sequence[Ticket]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where n texts are in the caches: their rows [n * width], and pages [n * width, pages]."""
        table = np.full((len(tickets), self.width, self.table.shape[1]), self.scratch[1])
        for entry, ticket in zip(table, tickets, strict=True):
            for index, page in enumerate(ticket.pages):
                entry[:, index] = page
        firsts = np.array([t.cache_index for t in tickets])[:, None] * self.width
        ids = (firsts + np.arange(self.width)).ravel()
        return ids, table.reshape(len(ids), -1)

    def start_values(
        self, first: int, tickets: Sequence[Ticket], accepted: Sequence[AcceptedPrefix]
    ) -> list[tuple[Tensor, NDArray[Any]]]:
        """What the texts of windows first, first + 1 ... start with, after the tokens that were
        accepted: views of the state, each with the numbers that are to be written to it.
        """
        windows, width = [t.window for t in tickets], self.width
        slots = slice(first, first + len(tickets))
        rows = slice(slots.start * width, slots.stop * width)
        ids, table = self.locate(tickets)
        tokens = padded([p.tokens for p in accepted], 0)
        logprobs = padded([p.logprobs for p in accepted], 0, dtype=np.float32)
        sums = np.array([sum(p.logprobs) for p in accepted], dtype=np.float32)
        counts = np.array([len(p.tokens) for p in accepted])
        temperatures = np.array([w.attempt.temperature for w in windows], dtype=np.float32)
        pairs, made = zip(rules_of(tickets), accepted, strict=True), self.filters.made.values()
        states = [[t[-1] for f in made for t in f.along(r, p.tokens)] for r, p in pairs]
        by_text = [
            (self.texts.sampled[:, : tokens.shape[1]], tokens),
            (self.texts.token_logprobs[:, : tokens.shape[1]], logprobs),
            (self.texts.logprobs, sums),
            (self.counts, counts),
            (self.positions, counts + [len(w.prompt) - 1 for w in windows]),
            (self.temperatures, temperatures),
            *zip(self.filters.tensors(), map(np.array, zip(*states, strict=True)), strict=True),
        ]
        written = [(t[rows], numbers.repeat(width, axis=0)) for t, numbers in by_text]
        written += (self.table[rows], table), (self.locations.ids[rows], ids)
        written.append((self.locations.slots[slots], np.array([t.slot for t in tickets])))
        if temperatures.any():
            keys = np.zeros((len(tickets), width, self.limit), dtype=np.int64)
            for entry, window in zip(keys, windows, strict=True):
                if window.attempt.temperature > 0:
                    generator = np.random.Generator(np.random.PCG64(window.attempt.seed))
                    entry[:] = generator.integers(-(2**63), 2**63, entry.shape)
            written.append((self.keys[rows], keys.reshape(len(ids), -1)))
        return written


def rules_of(tickets: Sequence[Ticket]) -> list[Rules]:
    """The rules of windows that have texts."""
    return [t.window.rules for t in tickets if t.window.rules is not None]


def _consecutive(numbers: Sequence[int], width: int = 1) -> int | None:
    """The first of them times `width`, if they are consecutive; else None."""
    first = numbers[0] if numbers else -1
    consecutive = list(numbers) == list(range(first, first + len(numbers)))
    return first * width if numbers and consecutive else None
