"""The timestamp rules of `whisper.decoding.ApplyTimestampRules`, without its loop over rows."""

from collections.abc import Hashable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.base import NEVER, LogitFilter, State, Texts
from slimwhisper.engine.requests import Rules
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.types import SpecialTokens


class Timestamps(LogitFilter):
    """Timestamps come in pairs, never decrease, come first, and win if they are more likely,
    summed, than any other token.

    The state of each row:
        enabled: bool: False where timestamps are not sampled.
        initial_limit: int64: the largest first timestamp, in tokens from <|0.00|>.
        last: bool: the last token is a timestamp; True where there is none.
        before_last: bool: the one before is; True where there is none.
        latest: int64: the latest timestamp, in tokens from <|0.00|>; -1: none yet.
    """

    fixed = 2

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.vocabulary = vocabulary
        dtypes = (torch.bool, torch.int64, torch.bool, torch.bool, torch.int64)
        self.state = tuple(torch.zeros(rows, dtype=dtype, device=device) for dtype in dtypes)

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """Whether a window samples them."""
        return any(r.timestamps for r in rules) or None

    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """By the tokens that are timestamps."""
        stamps, limit = self.vocabulary.timestamps, rules.max_initial_timestamp
        states = [(True, True, -1)]
        for token in tokens:
            last, _, latest = states[-1]
            is_stamp = token in stamps
            states.append((is_stamp, last, token - stamps.start if is_stamp else latest))
        enabled = np.full(len(states), rules.timestamps)
        latest_first = np.full(len(states), self.vocabulary.size if limit is None else limit)
        return enabled, latest_first, *map(np.array, zip(*states, strict=True))

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """logits [R, V]."""
        apply_timestamp_rules(logits, (*texts.states[self], texts.counts), self.vocabulary)

    def after(self, state: State, tokens: Tensor) -> State:
        """Timestamps are the tokens from the first one up, and below the end."""
        enabled, limit, last, _, latest = state
        begin, end = self.vocabulary.timestamps.start, self.vocabulary.timestamp_end
        is_stamp = tokens >= begin
        if end is not None:
            is_stamp &= tokens < end
        latest = torch.where(is_stamp, tokens - begin, latest)
        return enabled, limit, is_stamp, last.clone(), latest

    def most_likely(self, logits: Tensor, texts: Texts, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """The best token of each row, under these rules if the texts have them in use, and its
        log-probability: [R] int64, [R] floating. logits [R, V] may be changed in place.
        """
        used = self in texts.states
        # without the rules, nothing reads the states
        state = (*texts.states[self], texts.counts) if used else (texts.counts,) * 6

        def by_torch() -> tuple[Tensor, Tensor]:
            """[R] int64, [R] floating."""
            if used:
                apply_timestamp_rules(logits, state, self.vocabulary)
            tokens = logits.argmax(dim=-1)
            return tokens, log_probability(logits, tokens)

        numbers = self.vocabulary.boundaries if used else (0, 0, 0, 0)
        return kernels.choose_token(logits, state, numbers, used, by_torch)


def apply_timestamp_rules(
    logits: Tensor, state: Sequence[Tensor], vocabulary: SpecialTokens
) -> None:
    """Change the logits [R, V] of the next tokens. state: that of `Timestamps`, and how many tokens
    each text has, [R] int64. The text part, by far the widest, is read and written once.
    """
    on, initial_limit, last, before_last, latest, counts = state
    stamps = logits[:, vocabulary.timestamps.start : vocabulary.timestamps.stop]
    texts, specials = (
        [logits[:, ids.start : ids.stop] for ids in ranges]
        for ranges in (vocabulary.texts, vocabulary.specials)
    )
    if vocabulary.no_timestamps is not None:
        logits[:, vocabulary.no_timestamps].masked_fill_(on, NEVER)

    first, unpaired = on & (counts == 0), last & ~before_last
    opened = on & unpaired & ~first  # one timestamp: its pair or the end is next
    paired = on & last & before_last & ~first  # two timestamps: text or the end is next

    # a segment has a length: later than the last timestamp, unless this is the pair's second
    index = torch.arange(stamps.shape[1], device=logits.device)
    floor = torch.where(unpaired, latest, latest + 1)
    late = first[:, None] & (index > initial_limit[:, None])
    stamps.masked_fill_(paired[:, None] | (on[:, None] & (index < floor[:, None])) | late, NEVER)

    no_text, no_special = opened | first, first
    others = [(part, no_text) for part in texts] + [(part, no_special) for part in specials]
    best = reduce(torch.maximum, [p.amax(dim=-1).masked_fill(no, NEVER) for p, no in others])
    timestamp_wins = on & (stamps.logsumexp(dim=-1) > best)
    for part, no in others:
        part.masked_fill_((no | timestamp_wins)[:, None], NEVER)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens [R] int64 under logits [R, V] -> [R]."""
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
