"""Host-side snapshots of a row group's texts: copies of their state at one step.

On a GPU they are copied to pinned memory asynchronously, and read a few steps later, so that
neither host nor device waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slimwhisper.cache.rows import PAGE
from slimwhisper.engine.requests import Decoded
from slimwhisper.engine.tickets import Ticket, TicketState

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

    def _rows(self, index: int) -> slice:
        return slice(index * self.width, (index + 1) * self.width)

    def _texts(self, index: int) -> list[Candidate]:
        """A window's candidates."""
        texts, rows, count = self.texts, self._rows(index), self.tickets[index].count
        bonuses = _or_zeros(texts.bonuses, texts.logprobs)
        columns = texts.sampled[:, :count], texts.logprobs, bonuses, texts.token_logprobs[:, :count]
        return list(zip(*(t[rows].tolist() for t in columns), strict=True))


class BeamTexts(NamedTuple):
    """Beams, and the finished texts of each window."""

    lengths: Tensor  # [n * width] int64: tokens of each beam
    table: Tensor  # [n * width, pages] int64: the pages of each beam
    finished: Tensor  # [n, m, limit] int64
    finished_lengths: Tensor  # [n, m] int64
    finished_scores: Tensor  # [n, m] floating
    finished_logprobs: Tensor  # [n, m, limit] floating; [n, m, 0] if not requested
    finished_bonuses: Tensor | None  # [n, m] floating; None: as `TextBuffers.bonuses`
    finished_count: Tensor  # [n] int64


class BeamSnapshot(Snapshot):
    """The beams and finished texts of a group's tickets at one step."""

    def __init__(
        self, tickets: Sequence[Ticket], texts: TextBuffers, beams: BeamTexts, eot: int
    ) -> None:
        self.beams = BeamTexts(*map(_to_host, beams))
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
            yield snap.ticket, self.beams.table[self._rows(index), :whole].tolist()

    def _ended(self) -> Tensor:
        """[n] bool: the window has enough finished texts; the last column is for late ones."""
        return self.beams.finished_count >= self.beams.finished.shape[1] - 1

    def _texts(self, index: int) -> list[Candidate]:
        """The finished texts and, if there are too few, the best unfinished beams."""
        beams, texts, rows = self.beams, self.texts, self._rows(index)
        count = int(beams.finished_count[index])
        finished = (
            beams.finished,
            beams.finished_lengths,
            beams.finished_scores,
            _or_zeros(beams.finished_bonuses, beams.finished_scores),
            beams.finished_logprobs,
        )
        candidates = [
            (tokens[:n], score, bonus, logprobs[: n + 1])
            for tokens, n, score, bonus, logprobs in zip(
                *(t[index, :count].tolist() for t in finished), strict=True
            )
        ]
        bonuses = _or_zeros(texts.bonuses, texts.logprobs)
        best = (texts.logprobs[rows] + bonuses[rows]).argsort().flip(0)
        for beam in (rows.start + best[: max(self.width - count, 0)]).tolist():
            length = int(beams.lengths[beam])
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
