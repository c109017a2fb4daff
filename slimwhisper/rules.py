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

    def start(self, rows: slice, enabled: bool, initial_limit: int) -> None:
        """Begin new texts in some rows."""
        values = (enabled, initial_limit, False, True, -1, 0)
        for tensor, value in zip(self.tensors(), values, strict=True):
            tensor[rows] = value

    def advance(self, tokens: Tensor, timestamp_begin: int) -> None:
        """Take note of one more token a row, [R] int64."""
        stamp = tokens >= timestamp_begin
        self.before_last.copy_(torch.where(self.count == 0, True, self.last))
        self.last.copy_(stamp)
        self.latest.copy_(torch.where(stamp, tokens - timestamp_begin, self.latest))
        self.count.add_(1)


def suppress(logits: Tensor, tokens: Tensor) -> None:
    """Forbid tokens [n] int64 in every row."""
    logits.index_fill_(1, tokens, NEVER)


def apply_timestamp_rules(logits: Tensor, state: TimestampState, vocabulary: Vocabulary) -> None:
    """Timestamps come in pairs, never decrease, stand first, and win when likelier than any text.

    logits [R, V] of the next token. The wide part, text, is read once and written once.
    """
    begin, eot, on = vocabulary.timestamp_begin, vocabulary.eot, state.enabled
    text, special, stamps = logits[:, :eot], logits[:, eot:begin], logits[:, begin:]
    special[:, vocabulary.no_timestamps - eot].masked_fill_(on, NEVER)

    first = on & (state.count == 0)
    opened = on & state.last & ~state.before_last & ~first  # one stamp: its pair or the end follows
    paired = on & state.last & state.before_last & ~first  # two stamps: text or the end follows

    # a segment has a length: past the latest stamp, unless this one closes the pair it opened
    index = torch.arange(stamps.shape[1], device=logits.device)
    floor = torch.where(state.last & ~state.before_last, state.latest, state.latest + 1)
    late = first[:, None] & (index > state.initial_limit[:, None])
    stamps.masked_fill_(paired[:, None] | (on[:, None] & (index < floor[:, None])) | late, NEVER)

    no_text, no_special = opened | first, first
    likeliest = torch.maximum(
        text.amax(dim=-1).masked_fill(no_text, NEVER),
        special.amax(dim=-1).masked_fill(no_special, NEVER),
    )
    likelier = on & (stamps.logsumexp(dim=-1) > likeliest)
    text.masked_fill_((no_text | likelier)[:, None], NEVER)
    special.masked_fill_((no_special | likelier)[:, None], NEVER)


def sample(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token a row: logits [R, V], temperatures [R] > 0, uniform [R] in [0, 1) -> [R] int64.

    By inversion: the draw depends on its own row and number alone.
    """
    weights = (logits / temperatures[:, None]).softmax(dim=-1)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    # past the last token with any weight lies only rounding
    tokens = torch.searchsorted(cumulative, target, right=True)
    return tokens.clamp_(max=logits.shape[1] - 1).squeeze(1)
