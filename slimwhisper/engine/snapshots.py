"""Host-side snapshots of a row group's texts: copies of their state at one step.

On a GPU they are copied to pinned memory asynchronously, and read a few steps later, so that
neither host nor device waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimwhisper.cache.pool import PAGE
from slimwhisper.engine.requests import Decoded
from slimwhisper.engine.tickets import Ticket, TicketState

# sampled tokens; the sum of their log-probabilities; what hot words gained; the log-probability of
# each, with <|endoftext|>'s, or none
Candidate = tuple[list[int], float, float, list[float]]


@dataclass(slots=True)
class TextBuffers:
    """The texts of n windows, with `width` rows each: views of a group's buffers, or copies."""

    last: Tensor  # [n * width] int64: each row's last token
    sampled: Tensor  # [n * width, limit] int64
    logprobs: Tensor  # [n * width] floating: sums
    token_logprobs: Tensor  # [n * width, limit] floating; [n * width, 0] if not requested
    no_speech: Tensor  # [n] floating: probabilities
    bonuses: Tensor | None  # [n * width] floating: what hot words gained; None: no text has some

    def tensors(self) -> tuple[Tensor | None, ...]:
        """In the order of the fields."""
        return (
            *(self.last, self.sampled, self.logprobs, self.token_logprobs, self.no_speech),
            self.bonuses,
        )

    def of(self, first: int, count: int, width: int, logprobs: bool) -> "TextBuffers":
        """Views of windows first ... first + count - 1; logprobs: with those of each token."""
        rows = slice(first * width, (first + count) * width)
        each = self.token_logprobs[rows, : self.token_logprobs.shape[1] if logprobs else 0]
        no_speech = self.no_speech[first : first + count]
        return TextBuffers(
            self.last[rows], self.sampled[rows], self.logprobs[rows], each, no_speech, None
        )


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
        copies: list[Any] = [_to_host(t) for t in texts.tensors()]
        self.texts = type(texts)(*copies)
        if texts.last.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(texts.last.device))

    def wait(self) -> None:
        """Wait until the copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()

    def ended(self) -> list[int]:
        """The indices of tickets whose texts have ended, without stale ones."""
        self.wait()
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

    def _texts(self, index: int) -> list[Candidate]:
        """A window's candidates."""
        rows, count = slice(index * self.width, (index + 1) * self.width), self.tickets[index].count
        sampled = self.texts.sampled[rows, :count].tolist()
        each = self.texts.token_logprobs[rows, :count].tolist()
        bonuses = _numbers(self.texts.bonuses, rows, self.width)
        return list(zip(sampled, self.texts.logprobs[rows].tolist(), bonuses, each, strict=True))


@dataclass(slots=True)
class BeamTexts(TextBuffers):
    """Beams, and the finished texts of each window."""

    lengths: Tensor  # [n * width] int64: tokens of each beam
    finished: Tensor  # [n, m, limit] int64
    finished_lengths: Tensor  # [n, m] int64
    finished_scores: Tensor  # [n, m] floating
    finished_logprobs: Tensor  # [n, m, limit] floating; [n, m, 0] if not requested
    finished_bonuses: Tensor | None  # [n, m] floating; None: as `bonuses`
    finished_count: Tensor  # [n] int64
    table: Tensor  # [n * width, pages] int64: the pages of each beam

    def tensors(self) -> tuple[Tensor | None, ...]:
        """In the order of the fields."""
        return (
            *TextBuffers.tensors(self),
            *(self.lengths, self.finished, self.finished_lengths),
            *(self.finished_scores, self.finished_logprobs, self.finished_bonuses),
            *(self.finished_count, self.table),
        )


class BeamSnapshot(Snapshot):
    """The beams and finished texts of a group's tickets at one step."""

    texts: BeamTexts

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
            rows = slice(index * self.width, (index + 1) * self.width)
            yield snap.ticket, self.texts.table[rows, :whole].tolist()

    def _ended(self) -> Tensor:
        """[n] bool: the window has enough finished texts; the last column is for late ones."""
        return self.texts.finished_count >= self.texts.finished.shape[1] - 1

    def _texts(self, index: int) -> list[Candidate]:
        """The finished texts and, if there are too few, the best unfinished beams."""
        t, width = self.texts, self.width
        count = int(t.finished_count[index])
        tokens = t.finished[index, :count].tolist()
        lengths = t.finished_lengths[index, :count].tolist()
        scores = t.finished_scores[index, :count].tolist()
        each = t.finished_logprobs[index, :count].tolist()
        bonuses = _numbers(t.finished_bonuses, (index, slice(count)), count)
        finished = zip(tokens, lengths, scores, bonuses, each, strict=True)
        texts = [
            (tokens[:n], score, bonus, logprobs[: n + 1])
            for tokens, n, score, bonus, logprobs in finished
        ]
        if count < width:
            row = index * width
            gained = torch.tensor(_numbers(t.bonuses, slice(row, row + width), width))
            best = (t.logprobs[row : row + width] + gained).argsort().flip(0)
            for beam in (row + best[: width - count]).tolist():
                length, bonus = int(t.lengths[beam]), float(gained[beam - row])
                logprobs = t.token_logprobs[beam, :length].tolist()
                tokens = t.sampled[beam, :length].tolist()
                texts.append((tokens, float(t.logprobs[beam]), bonus, logprobs))
        return texts


def _numbers(t: Tensor | None, index: Any, count: int) -> list[float]:
    """t[index], `count` numbers; zeros without a tensor."""
    return [0.0] * count if t is None else t[index].tolist()


def _to_host(t: Tensor | None) -> Tensor | None:
    """An asynchronous copy in pinned memory, with CUDA; of a CPU's tensor, t itself."""
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
