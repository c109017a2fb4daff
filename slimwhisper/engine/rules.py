"""Whisper's decoding rules: logit filters and the choice of a token, for all rows in parallel.

Functions over tensors: logits [R, V] are changed in place, and nothing is copied to the host.
The timestamp rules are those of `whisper.decoding.ApplyTimestampRules`, without its loop over rows.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from slimwhisper.engine.hot_words.automaton import HotWords, hot_words
from slimwhisper.engine.requests import Rules
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.splitmix64 import uniform
from slimwhisper.tokens.suppression import suppressed_first_tokens, suppressed_tokens
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Dims, Options

NEVER = float("-inf")


class TimestampHistory(NamedTuple):
    """The timestamp rules' state of one text: the last four fields of `TimestampState`."""

    last: bool = False
    before_last: bool = True
    latest: int = -1
    tokens: int = 0  # sampled

    def extended(self, token: int, stamps: range) -> "TimestampHistory":
        """The state after one more token. stamps: the tokens that are timestamps."""
        is_timestamp = token in stamps
        latest = token - stamps.start if is_timestamp else self.latest
        return TimestampHistory(
            is_timestamp, self.last if self.tokens else True, latest, self.tokens + 1
        )


NO_HISTORY = TimestampHistory()


@dataclass(frozen=True, slots=True)
class TimestampState:
    """The timestamp rules' state of each row."""

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
    def of(numbers: Tensor) -> "TimestampState":
        """The state of R texts: numbers [R, 6] int64, in the order of the fields."""
        enabled, limit, last, before_last, latest, count = numbers.T.contiguous().unbind(0)
        return TimestampState(enabled.bool(), limit, last.bool(), before_last.bool(), latest, count)

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
        """A view of some rows."""
        return TimestampState(*(t[rows] for t in self.tensors()))

    def start(self, rows: slice, texts: "TimestampState") -> None:
        """Start new texts in some rows."""
        for tensor, started in zip(self.tensors(), texts.tensors(), strict=True):
            tensor[rows] = started

    def advance(self, tokens: Tensor, begin: int, end: int | None = None) -> None:
        """Record one more token per row, [R] int64. Timestamps are the tokens from `begin` up,
        below `end`.
        """
        is_timestamp = tokens >= begin
        if end is not None:
            is_timestamp &= tokens < end
        self.before_last.copy_(torch.where(self.count == 0, True, self.last))
        self.last.copy_(is_timestamp)
        self.latest.copy_(torch.where(is_timestamp, tokens - begin, self.latest))
        self.count.add_(1)


NO_TOKEN = -1  # pads lists of tokens


@dataclass(slots=True)
class BannedTokens:
    """The tokens that each row may never sample, padded to the same number."""

    tokens: Tensor  # [R, n] int64; 0 where a row has fewer
    penalties: Tensor  # [R, n] float32: -inf, or 0 for the padding

    @staticmethod
    def of(tokens: Tensor) -> "BannedTokens":
        """tokens [R, n] int64, padded with `NO_TOKEN`."""
        penalties = torch.full(tokens.shape, NEVER, device=tokens.device)
        return BannedTokens(tokens.clamp(min=0), penalties.masked_fill_(tokens < 0, 0))

    @staticmethod
    def allocate(rows: int, device: torch.device) -> "BannedTokens":
        """For Whisper's list, which has about 90 tokens; graphs hold the address."""
        return BannedTokens.of(torch.full((rows, 128), NO_TOKEN, device=device))

    def tensors(self) -> tuple[Tensor, ...]:
        """Both [R, n]."""
        return self.tokens, self.penalties

    def start(self, rows: slice, banned: "BannedTokens") -> bool:
        """Ban exactly some tokens in some rows. Returns whether buffers were replaced."""
        count, width = banned.tokens.shape[1], self.tokens.shape[1]
        if count > width:
            more = (1 << (count - 1).bit_length()) - width
            self.tokens, self.penalties = (
                torch.nn.functional.pad(t, (0, more)) for t in self.tensors()
            )
        for tensor, started in zip(self.tensors(), banned.tensors(), strict=True):
            tensor[rows] = 0
            tensor[rows, :count] = started
        return count > width

    def apply(self, logits: Tensor, rows: slice | Tensor) -> None:
        """Forbid the tokens in the logits [R, V] of these rows, float32 or float64."""
        penalties = self.penalties[rows].to(logits.dtype)
        logits.scatter_add_(1, self.tokens[rows], penalties)


def apply_timestamp_rules(logits: Tensor, state: TimestampState, vocabulary: Vocabulary) -> None:
    """Timestamps come in pairs, never decrease, come first, and win if they are more likely,
    summed, than any other token.

    logits [R, V] of the next token. The text part, by far the widest, is read and written once.
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
    opened = (
        on & state.last & ~state.before_last & ~first
    )  # one timestamp: its pair or the end is next
    paired = on & state.last & state.before_last & ~first  # two timestamps: text or the end is next

    # a segment has a length: later than the last timestamp, unless this is the pair's second
    index = torch.arange(stamps.shape[1], device=logits.device)
    floor = torch.where(state.last & ~state.before_last, state.latest, state.latest + 1)
    late = first[:, None] & (index > state.initial_limit[:, None])
    stamps.masked_fill_(paired[:, None] | (on[:, None] & (index < floor[:, None])) | late, NEVER)

    no_text, no_special = opened | first, first
    others = [(part, no_text) for part in texts] + [(part, no_special) for part in specials]
    best = reduce(torch.maximum, [p.amax(dim=-1).masked_fill(no, NEVER) for p, no in others])
    timestamp_wins = on & (stamps.logsumexp(dim=-1) > best)
    for part, no in others:
        part.masked_fill_((no | timestamp_wins)[:, None], NEVER)


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
    """Sample one token per row: logits [R, V], temperatures [R] > 0, keys [R] int64 -> [R] int64.

    Every token gets a random waiting time, exponential with its probability as the rate, and the
    shortest wins. So rounding of the weights matters only in near ties. With inverse transform
    sampling, the rounding of a cumulative sum of 50,000 probabilities would change tokens.
    """
    return fastest(logits, temperatures, waiting_times(keys, logits.shape[1]))


def waiting_times(keys: Tensor, size: int) -> Tensor:
    """Random waiting times of the tokens, with rate 1: keys [R] int64 -> [R, size] floating."""
    index = torch.arange(1, size + 1, device=keys.device)
    # MPS has no float64
    bits, dtype = (23, torch.float32) if keys.device.type == "mps" else (53, torch.float64)
    return -uniform(keys[:, None], index, bits, dtype).log()


def fastest(
    logits: Tensor, temperatures: Tensor, waits: Tensor, among: Tensor | None = None
) -> Tensor:
    """Sample as `sample`, by waits [R, V] of `waiting_times`. among [V] int64: 1 for the tokens to
    choose from, else 0; None: all.
    """
    weights = (logits / temperatures[:, None]).softmax(dim=-1) / waits
    return (weights if among is None else weights * among).argmax(dim=-1)


def make_rules(dims: Dims, options: Options, vocabulary: Vocabulary | None = None) -> Rules:
    """The sampling rules of some options; equal rules are the same object.

    vocabulary: None: Whisper's for these dimensions. Raises OptionError for hot words that it
    cannot write.
    """
    vocabulary = vocabulary or get_vocabulary(dims)
    rules = _rules(
        dims,
        vocabulary,
        options.suppress_tokens,
        options.suppress_blank,
        not options.without_timestamps,
        options.max_initial_timestamp,
        options.sample_len or dims.n_text_ctx // 2,
        options.repetition_penalty,
        options.no_repeat_ngram_size,
    )
    if not options.hot_words:
        return rules
    lines = tuple(options.hot_words)
    return _with_hot_words(rules, hot_words(vocabulary, lines, options.hot_word_bonus))


@lru_cache(maxsize=8)  # lists may be large
def _with_hot_words(rules: Rules, words: HotWords) -> Rules:
    return replace(rules, hot_words=words)


@lru_cache(maxsize=64)  # rows that share their rules are filtered together
def _rules(
    dims: Dims,
    vocabulary: Vocabulary,
    suppressed: str | tuple[int | str, ...] | None,
    blank: bool,
    timestamps: bool,
    latest_first: float | None,
    sample_len: int,
    repetition_penalty: float,
    no_repeat_ngram_size: int,
) -> Rules:
    limit = None
    if latest_first:
        limit = round(latest_first * FRAMES_PER_SECOND / MEL_FRAMES_PER_POSITION)
    first = suppressed_first_tokens(vocabulary) if blank else []
    return Rules(
        suppress=torch.tensor(suppressed_tokens(vocabulary, suppressed), dtype=torch.int64),
        suppress_first=torch.tensor(first, dtype=torch.int64),
        timestamps=timestamps,
        max_initial_timestamp=limit,
        sample_len=sample_len,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
    )
