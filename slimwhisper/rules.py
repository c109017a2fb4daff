"""Which token comes next: logit filters and the choice, for all rows at once.

Functions over tensors: logits [R, V] are changed in place, nothing is read back to the host.
The timestamp rules are `whisper.decoding.ApplyTimestampRules`' own, without its loop over rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.vocabulary import Vocabulary

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class TimestampState:
    """What the timestamp rules remember of each row's sampled tokens."""

    enabled: Tensor  # [R] bool: False where timestamps are not sampled
    initial_limit: Tensor  # [R] int64: largest first timestamp, in tokens from <|0.00|>
    last: Tensor  # [R] bool: the last token is a timestamp
    before_last: Tensor  # [R] bool: the one before is; True where there is none
    latest: Tensor  # [R] int64: the latest timestamp, in tokens from <|0.00|>; -1: none yet
    count: Tensor  # [R] int64: tokens sampled

    @staticmethod
    def allocate(rows: int, device: torch.device) -> "TimestampState":
        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, dtype=dtype, device=device)

        flag, number = torch.bool, torch.int64
        return TimestampState(
            zeros(flag), zeros(number), zeros(flag), zeros(flag), zeros(number), zeros(number)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.enabled,
            self.initial_limit,
            self.last,
            self.before_last,
            self.latest,
            self.count,
        )

    def view(self, rows: slice) -> "TimestampState":
        """Some rows of the same memory."""
        return TimestampState(*(t[rows] for t in self.tensors()))

    def start(self, row: int, enabled: bool, initial_limit: int) -> None:
        """Begin a new text in a row."""
        values = (enabled, initial_limit, False, True, -1, 0)
        for tensor, value in zip(self.tensors(), values, strict=True):
            tensor[row] = value

    def advance(self, tokens: Tensor, timestamp_begin: int) -> None:
        """Take note of one more token a row, [R] int64."""
        stamp = tokens >= timestamp_begin
        self.before_last.copy_(torch.where(self.count == 0, True, self.last))
        self.last.copy_(stamp)
        self.latest.copy_(torch.where(stamp, tokens - timestamp_begin, self.latest))
        self.count.add_(1)


def suppress(logits: Tensor, mask: Tensor) -> None:
    """Forbid tokens: mask [V] or [R, V] bool."""
    logits.masked_fill_(mask, NEVER)


def apply_timestamp_rules(logits: Tensor, state: TimestampState, vocabulary: Vocabulary) -> None:
    """Timestamps come in pairs, never decrease, stand first, and win when likelier than any text.

    logits [R, V] of the next token.
    """
    begin, on = vocabulary.timestamp_begin, state.enabled
    text, stamps = logits[:, :begin], logits[:, begin:]
    text[:, vocabulary.no_timestamps].masked_fill_(on, NEVER)

    first = on & (state.count == 0)
    opened = on & state.last & ~state.before_last & ~first  # one stamp: its pair or the end follows
    paired = on & state.last & state.before_last & ~first  # two stamps: text or the end follows
    text[:, : vocabulary.eot].masked_fill_(opened[:, None], NEVER)
    stamps.masked_fill_(paired[:, None], NEVER)

    # a segment has a length: past the latest stamp, unless this one closes the pair it opened
    index = torch.arange(stamps.shape[1], device=logits.device)
    floor = torch.where(state.last & ~state.before_last, state.latest, state.latest + 1)
    stamps.masked_fill_(on[:, None] & (index < floor[:, None]), NEVER)

    text.masked_fill_(first[:, None], NEVER)
    late = first[:, None] & (index > state.initial_limit[:, None])
    stamps.masked_fill_(late, NEVER)

    likelier = stamps.logsumexp(dim=-1) > text.amax(dim=-1)
    text.masked_fill_((on & likelier)[:, None], NEVER)


def choose_greedily(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [R, V] -> (most likely tokens [R] int64, their log-probabilities [R])."""
    best, tokens = logits.max(dim=-1)
    return tokens, best - logits.logsumexp(dim=-1)
