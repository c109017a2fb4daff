"""The most likely token of each row under the timestamp rules, in C (choose_token.c)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.kernels.cpu.library import Library, intercepted, pointer


def choose_token_in_c(
    library: Library,
    logits: Tensor,
    state: Sequence[Tensor],
    boundaries: tuple[int, int, int, int],
    rules: bool,
) -> tuple[Tensor, Tensor] | None:
    """As `Kernels.choose_token`; None where it cannot run."""
    rows, size = logits.shape
    eot, begin, _, no_timestamps = boundaries
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or intercepted():
        return None
    if not all(t.is_contiguous() for t in state) or (rules and not eot <= no_timestamps < begin):
        return None
    tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    library.functions["choose_token"](
        *map(pointer, (logits, *state, tokens, logprobs)),
        *(rows, logits.stride(0), size, *boundaries, int(rules), torch.get_num_threads()),
    )
    return tokens, logprobs
