"""What the host sees of a lane's texts: copies of one moment, judged now or a little later.

On a GPU the copies go to pinned memory while the lane decodes on, so that nobody waits for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.places import Ticket
from slimwhisper.engine.requests import Decoded

# sampled tokens; the sum of their log-probabilities; each, with <|endoftext|>'s, or none
Candidate = tuple[list[int], float, list[float]]


@dataclass(slots=True)
class Texts:
    """The buffers of n places, with `width` rows each: views of a lane's, or copies."""

    last: Tensor  # [n * width] int64: each row's last token
    sampled: Tensor  # [n * width, limit] int64
    logprobs: Tensor  # [n * width] floating: sums
    token_logprobs: Tensor  # [n * width, limit] floating; [n * width, 0] if no window asks
    no_speech: Tensor  # [n] floating: probabilities

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the fields."""
        return self.last, self.sampled, self.logprobs, self.token_logprobs, self.no_speech


class Look:
    """The texts of a lane's tickets at one moment."""

    def __init__(
        self,
        tickets: Sequence[Ticket],
        texts: Texts,
        counts: NDArray[np.int64],
        limits: NDArray[np.int64],
        eot: int,
    ) -> None:
        """counts, limits: [n], tokens sampled and most tokens to sample, of each ticket."""
        self.tickets = [(ticket, ticket.starts) for ticket in tickets]
        self.counts, self.full, self.eot = counts.copy(), counts >= limits, eot
        self.width = len(texts.last) // len(tickets)
        self._copied: torch.cuda.Event | None = None
        self.texts = type(texts)(*map(_to_host, texts.tensors()))
        if texts.last.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(texts.last.device))

    def ended(self) -> list[tuple[int, Ticket]]:
        """The tickets whose texts had ended, with their indices; none that began anew since."""
        if self._copied is not None:
            self._copied.synchronize()
        ended = np.flatnonzero(self.full | self._ended().numpy()).tolist()
        found = [(i, *self.tickets[i]) for i in ended]
        return [(i, ticket) for i, ticket, start in found if ticket.starts == start]

    def result(self, index: int, length_penalty: float | None) -> Decoded:
        """The best text of a ticket that had ended."""
        ticket, found = self.tickets[index][0], []
        for tokens, logprob, each in self._texts(index):
            end = tokens.index(self.eot) if self.eot in tokens else len(tokens)
            found.append((tokens[:end], logprob, each[: end + 1]))
        best, logprob, each = max(found, key=lambda t: _score(len(t[0]), t[1], length_penalty))
        return Decoded(
            tokens=tuple(best),
            avg_logprob=logprob / (len(best) + 1),
            no_speech_prob=float(self.texts.no_speech[index]),
            temperature=ticket.window.attempt.temperature,
            drafted=ticket.drafted,
            logprobs=tuple(each) if ticket.window.logprobs else (),
        )

    def _ended(self) -> Tensor:
        """[n] bool: all texts of the place have ended."""
        return (self.texts.last == self.eot).unflatten(0, (-1, self.width)).all(dim=1)

    def _texts(self, index: int) -> list[Candidate]:
        """The candidates of a place."""
        rows, count = slice(index * self.width, (index + 1) * self.width), int(self.counts[index])
        sampled = self.texts.sampled[rows, :count].tolist()
        each = self.texts.token_logprobs[rows, :count].tolist()
        return list(zip(sampled, self.texts.logprobs[rows].tolist(), each, strict=True))


@dataclass(slots=True)
class BeamTexts(Texts):
    """The same, and the finished texts of each place."""

    lengths: Tensor  # [n * width] int64: tokens of each beam
    finished: Tensor  # [n, m, limit] int64
    finished_lengths: Tensor  # [n, m] int64
    finished_scores: Tensor  # [n, m] floating
    finished_logprobs: Tensor  # [n, m, limit] floating; [n, m, 0] if no window asks
    finished_count: Tensor  # [n] int64

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the fields."""
        return (
            *Texts.tensors(self),
            *(self.lengths, self.finished, self.finished_lengths),
            *(self.finished_scores, self.finished_logprobs, self.finished_count),
        )


class BeamLook(Look):
    """The beams and finished texts of a lane's tickets at one moment."""

    texts: BeamTexts

    def _ended(self) -> Tensor:
        """[n] bool: the place has enough finished texts; its last column takes those too late."""
        return self.texts.finished_count >= self.texts.finished.shape[1] - 1

    def _texts(self, index: int) -> list[Candidate]:
        """The finished texts and, if there are too few, the best unfinished beams."""
        t, width = self.texts, self.width
        count = int(t.finished_count[index])
        tokens = t.finished[index, :count].tolist()
        lengths = t.finished_lengths[index, :count].tolist()
        scores = t.finished_scores[index, :count].tolist()
        each = t.finished_logprobs[index, :count].tolist()
        found = zip(tokens, lengths, scores, each, strict=True)
        texts = [(tokens[:n], score, own[: n + 1]) for tokens, n, score, own in found]
        if count < width:
            row = index * width
            best = t.logprobs[row : row + width].argsort().flip(0)
            for beam in (row + best[: width - count]).tolist():
                length = int(t.lengths[beam])
                own = t.token_logprobs[beam, :length].tolist()
                texts.append((t.sampled[beam, :length].tolist(), float(t.logprobs[beam]), own))
        return texts


def _to_host(t: Tensor) -> Tensor:
    """A copy of a GPU's tensor, complete only once what was launched so far is; else t itself."""
    if t.device.type != "cuda" or not t.numel():
        return t
    host = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    return host.copy_(t, non_blocking=True)


def _score(length: int, logprob: float, length_penalty: float | None) -> float:
    """How texts are ranked: by mean log-probability, or Google NMT's score (arXiv 1609.08144)."""
    if length_penalty is None:
        return logprob / max(length, 1)
    return float(logprob / ((5 + length) / 6) ** length_penalty)
