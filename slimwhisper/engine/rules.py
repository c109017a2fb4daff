"""Which token comes next: logit filters and the choice, for all rows together.

Functions over tensors: logits [R, V] are changed in place, and nothing is copied to the host.
The timestamp rules are those of `whisper.decoding.ApplyTimestampRules`, without its loop over rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from slimwhisper.engine.requests import Rules
from slimwhisper.errors import OptionError
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.splitmix64 import uniform
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Dims, Options

NEVER = float("-inf")


class Said(NamedTuple):
    """What the timestamp rules remember of one text: the last four fields of `TimestampState`."""

    last: bool = False
    before_last: bool = True
    latest: int = -1
    tokens: int = 0  # how many

    def then(self, token: int, stamps: range) -> "Said":
        """After one more token. stamps: the tokens that are timestamps."""
        stamp = token in stamps
        latest = token - stamps.start if stamp else self.latest
        return Said(stamp, self.last if self.tokens else True, latest, self.tokens + 1)


UNSAID = Said()


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
        """Zeros, each [rows]."""

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, dtype=dtype, device=device)

        flag, number = torch.bool, torch.int64
        return TimestampState(
            zeros(flag), zeros(number), zeros(flag), zeros(flag), zeros(number), zeros(number)
        )

    @staticmethod
    def of(
        said: Sequence[Said], enabled: bool, initial_limit: int, device: torch.device
    ) -> "TimestampState":
        """Of R texts that follow the same rules."""
        rules = [torch.full((len(said),), value) for value in (enabled, initial_limit)]
        remembered = [torch.tensor(column) for column in zip(*said, strict=True)]
        return TimestampState(*(t.to(device) for t in (*rules, *remembered)))

    def tensors(self) -> tuple[Tensor, ...]:
        """Each [R], in the order of the fields."""
        return (
            self.enabled,
            self.initial_limit,
            self.last,
            self.before_last,
            self.latest,
            self.count,
        )

    def view(self, rows: slice) -> "TimestampState":
        """Some of the rows, in the same memory."""
        return TimestampState(*(t[rows] for t in self.tensors()))

    def start(self, rows: slice, enabled: bool, initial_limit: int, said: Said = UNSAID) -> None:
        """Start new texts in some rows. said: of the tokens that they begin with."""
        values = (enabled, initial_limit, *said)
        for tensor, value in zip(self.tensors(), values, strict=True):
            tensor[rows] = value

    def advance(self, tokens: Tensor, begin: int, end: int | None = None) -> None:
        """Record one more token per row, [R] int64. Timestamps are the tokens from `begin` up,
        below `end`.
        """
        stamp = tokens >= begin
        if end is not None:
            stamp &= tokens < end
        self.before_last.copy_(torch.where(self.count == 0, True, self.last))
        self.last.copy_(stamp)
        self.latest.copy_(torch.where(stamp, tokens - begin, self.latest))
        self.count.add_(1)


def suppress(logits: Tensor, tokens: Tensor) -> None:
    """Forbid tokens [n] int64 in logits [..., V]."""
    logits.index_fill_(-1, tokens.to(logits.device), NEVER)


@dataclass(slots=True)
class BannedTokens:
    """The tokens that each row may never sample, padded, as rows differ in how many."""

    tokens: Tensor  # [R, n] int64; 0 where a row has fewer
    penalties: Tensor  # [R, n] float32: -inf, or 0 for the padding

    @staticmethod
    def allocate(rows: int, device: torch.device) -> "BannedTokens":
        shape = (rows, 0)
        return BannedTokens(
            torch.zeros(shape, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.float32, device=device),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """Both [R, n]."""
        return self.tokens, self.penalties

    def start(self, rows: slice, tokens: Tensor) -> bool:
        """Ban just `tokens` [n] int64 in some rows. Returns whether the buffers were replaced."""
        more = len(tokens) - self.tokens.shape[1]
        if more > 0:
            self.tokens, self.penalties = (
                torch.nn.functional.pad(t, (0, more)) for t in self.tensors()
            )
        self.tokens[rows] = 0
        self.penalties[rows] = 0
        self.tokens[rows, : len(tokens)] = tokens.to(self.tokens.device)
        self.penalties[rows, : len(tokens)] = NEVER
        return more > 0

    def apply(self, logits: Tensor, rows: slice | Tensor) -> None:
        """Forbid them in the logits [R, V] of these rows, float32 or float64."""
        penalties = self.penalties[rows].to(logits.dtype)
        logits.scatter_add_(1, self.tokens[rows], penalties)


def apply_timestamp_rules(logits: Tensor, state: TimestampState, vocabulary: Vocabulary) -> None:
    """Timestamps come in pairs, never decrease, come first, and win if likelier than any text.

    logits [R, V] of the next token, of a vocabulary with timestamps. The text part, by far the
    widest, is read and written once.
    """
    on = state.enabled
    stamps = logits[:, vocabulary.timestamps.start : vocabulary.timestamps.stop]
    texts, specials = (
        [logits[:, ids.start : ids.stop] for ids in ranges]
        for ranges in (vocabulary.texts, vocabulary.specials)
    )
    if vocabulary.no_timestamps is not None:
        logits[:, vocabulary.no_timestamps].masked_fill_(on, NEVER)

    first = on & (state.count == 0)
    opened = on & state.last & ~state.before_last & ~first  # one stamp: its pair or the end is next
    paired = on & state.last & state.before_last & ~first  # two stamps: text or the end is next

    # a segment has a length: later than the last stamp, unless this is the pair's second stamp
    index = torch.arange(stamps.shape[1], device=logits.device)
    floor = torch.where(state.last & ~state.before_last, state.latest, state.latest + 1)
    late = first[:, None] & (index > state.initial_limit[:, None])
    stamps.masked_fill_(paired[:, None] | (on[:, None] & (index < floor[:, None])) | late, NEVER)

    no_text, no_special = opened | first, first
    others = [(part, no_text) for part in texts] + [(part, no_special) for part in specials]
    best = reduce(torch.maximum, [p.amax(dim=-1).masked_fill(no, NEVER) for p, no in others])
    stamp_wins = on & (stamps.logsumexp(dim=-1) > best)
    for part, no in others:
        part.masked_fill_((no | stamp_wins)[:, None], NEVER)


def most_likely(
    logits: Tensor,
    state: TimestampState,
    vocabulary: Vocabulary,
    timestamps: bool,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:
    """The best token of each row under the timestamp rules, and its log-probability: [R], [R].

    timestamps: at least one row samples them. logits [R, V] may be changed in place.
    """

    def by_torch() -> tuple[Tensor, Tensor]:
        """[R] int64, [R] floating."""
        if timestamps:
            apply_timestamp_rules(logits, state, vocabulary)
        tokens = logits.argmax(dim=-1)
        return tokens, log_probability(logits, tokens)

    numbers = vocabulary.boundaries if timestamps else (0, 0, 0, 0)
    return kernels.choose_token(logits, state.tensors(), numbers, timestamps, by_torch)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens [R] int64 under logits [R, V] -> [R]."""
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)


def sample(logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    """Draw one token per row: logits [R, V], temperatures [R] > 0, keys [R] int64 -> [R] int64.

    Every token gets a random waiting time, exponential with its probability as the rate, and the
    shortest wins. Rounding of `weights` then matters only in near ties; looking up a number in
    the cumulative sum of 50,000 probabilities would turn rounding into other tokens.
    """
    weights = (logits / temperatures[:, None]).softmax(dim=-1)
    columns = torch.arange(1, logits.shape[1] + 1, device=keys.device)
    waits = -uniform(keys[:, None], columns, 53, torch.float64).log()
    return (weights / waits).argmax(dim=-1)


def suppressed_tokens(vocabulary: Vocabulary, wanted: str | tuple[int, ...] | None) -> list[int]:
    """Tokens never sampled: those requested, and special tokens that only a prompt may contain.

    -1 in `wanted` means the model's own list, or all symbols that are not spoken. None or ""
    suppresses nothing.
    """
    if wanted is None or wanted in ("", ()):
        return []
    try:
        ids = [int(t) for t in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    except ValueError:
        raise OptionError(
            f"suppress_tokens {wanted!r}: give token ids with commas between, or -1"
        ) from None
    if any(not -1 <= t < vocabulary.size for t in ids):
        raise OptionError(f"suppress_tokens {wanted!r}: token ids are -1 to {vocabulary.size - 1}")
    given = [t for t in ids if t >= 0]
    if -1 in ids and vocabulary.suppressed is not None:
        return [*given, *vocabulary.suppressed]
    t = vocabulary.tokenizer()
    if -1 in ids:
        given += t.non_speech_tokens
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return [*given, *(token for token in prompts if token is not None)]


def make_rules(dims: Dims, options: Options, vocabulary: Vocabulary | None = None) -> Rules:
    """The sampling rules that the options ask for; equal rules are the same object.

    vocabulary: None: Whisper's for these dimensions.
    """
    return _rules(
        dims,
        vocabulary or get_vocabulary(dims),
        options.suppress_tokens,
        options.suppress_blank,
        not options.without_timestamps,
        options.max_initial_timestamp,
        options.sample_len or dims.n_text_ctx // 2,
    )


@lru_cache(maxsize=64)  # rows that share their rules are filtered together
def _rules(
    dims: Dims,
    vocabulary: Vocabulary,
    suppressed: str | tuple[int, ...] | None,
    blank: bool,
    timestamps: bool,
    latest_first: float | None,
    sample_len: int,
) -> Rules:
    limit = None
    if latest_first:
        limit = round(latest_first * FRAMES_PER_SECOND / MEL_FRAMES_PER_POSITION)
    return Rules(
        suppress=torch.tensor(suppressed_tokens(vocabulary, suppressed), dtype=torch.int64),
        suppress_first=torch.tensor(_blank(vocabulary) if blank else [], dtype=torch.int64),
        timestamps=timestamps,
        max_initial_timestamp=limit,
        sample_len=sample_len,
    )


def _blank(vocabulary: Vocabulary) -> list[int]:
    """What a text does not begin with: the model's own list, or a space and the end."""
    if vocabulary.suppressed_first is not None:
        return list(vocabulary.suppressed_first)
    return [*vocabulary.tokenizer().encode(" "), vocabulary.eot]
