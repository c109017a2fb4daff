"""Tokens that are never sampled, or never first: `whisper.decoding.SuppressTokens` and
`SuppressBlank`.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.filters.base import NEVER, LogitFilter, Texts
from slimwhisper.engine.requests import Rules
from slimwhisper.types import SpecialTokens

WIDTH = 128  # of a state: Whisper's list has about 90 tokens


class Suppression(LogitFilter):
    """Bans the tokens of each row, padded to the same number. Those that are banned first alone are
    no part of its state: see `forbid`.
    """

    fixed = 2

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.state = (  # both [R, n]
            torch.zeros((rows, WIDTH), dtype=torch.int64, device=device),  # 0 for the padding
            torch.zeros((rows, WIDTH), device=device),  # -inf, or 0 for the padding
        )

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """Every window bans some."""
        return True

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Whether the longest list needs wider tensors."""
        width, most = self.state[0].shape[1], max(len(r.suppress) for r in rules)
        if most <= width:
            return False
        more = (0, (1 << (most - 1).bit_length()) - width)
        self.state = tuple(torch.nn.functional.pad(t, more) for t in self.state)
        return True

    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The same at each token."""
        shape, count = (len(tokens) + 1, self.state[0].shape[1]), len(rules.suppress)
        banned, penalties = np.zeros(shape[1], dtype=np.int64), np.zeros(shape[1], dtype=np.float32)
        banned[:count], penalties[:count] = rules.suppress.numpy(), NEVER
        return np.broadcast_to(banned, shape), np.broadcast_to(penalties, shape)

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """Never these."""
        tokens, penalties = texts.states[self]
        logits.scatter_add_(1, tokens, penalties.to(logits.dtype))


def forbid(logits: Tensor, tokens: Tensor) -> None:
    """Ban tokens [R, n] int64, padded with numbers below 0, in logits [R, V]."""
    penalties = torch.full(tokens.shape, NEVER, dtype=logits.dtype, device=logits.device)
    logits.scatter_add_(1, tokens.clamp(min=0), penalties.masked_fill_(tokens < 0, 0))
