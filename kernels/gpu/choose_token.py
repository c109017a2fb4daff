"""The most likely token of each row under the timestamp rules, and its log-probability: Triton.

One pass over the logits, which `slimwhisper.engine.filters` (the reference, in PyTorch) reads and
writes about ten times. Text and special tokens form one side, timestamps the other, each with a
running maximum and sum; at the end the rules decide which side the token comes from.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits per iteration


@triton.jit
def _reduce_lanes(maxima, sums, tokens):
    """Maxima, sums and tokens per lane, [BLOCK] -> maximum, log of the sum, and token, []."""
    maximum = tl.max(maxima, 0)
    finite = tl.where(maximum == float("-inf"), 0.0, maximum)  # a side may be empty
    token = tl.min(tl.where(maxima == maximum, tokens, 2147483647), 0)
    return maximum, tl.log(tl.sum(sums * tl.exp(maxima - finite), 0)) + finite, token


@triton.jit
def _add_block(logits, token, maxima, sums, tokens):
    """The running maxima, sums of exponentials and tokens, each [BLOCK], with one more block."""
    new_maxima = tl.maximum(maxima, logits)
    finite = tl.where(new_maxima == float("-inf"), 0.0, new_maxima)
    sums = sums * tl.exp(maxima - finite) + tl.exp(logits - finite)
    return new_maxima, sums, tl.where(logits > maxima, token, tokens)


@triton.jit
def choose_token_kernel(
    logits,
    enabled,  # [R] of `filters.timestamps`, as are the next five
    initial_limit,
    last,
    before_last,
    latest,
    count,
    tokens,  # [R] int64, written
    logprobs,  # [R] float32, written
    row_stride,
    size,  # tokens in all
    eot,
    begin,  # the first timestamp
    end,  # the first token after them
    no_timestamps,
    RULES: tl.constexpr,  # some row samples timestamps
    BLOCK: tl.constexpr,
):
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    if RULES:
        has_rules = tl.load(enabled + row) != 0
        time_last = tl.load(last + row) != 0
        time_before = tl.load(before_last + row) != 0
        is_first = has_rules & (tl.load(count + row) == 0)
        paired = has_rules & time_last & time_before & (is_first == 0)
        no_text = (has_rules & time_last & (time_before == 0)) | is_first
        min_time = tl.load(latest + row) + tl.where(time_last & (time_before == 0), 0, 1)
        max_first_time = tl.load(initial_limit + row)
    lane = tl.arange(0, BLOCK)
    text_maxima = tl.full([BLOCK], float("-inf"), tl.float32)
    text_sums = tl.zeros([BLOCK], tl.float32)
    text_tokens = tl.zeros([BLOCK], tl.int32)
    time_maxima, time_sums, time_tokens = text_maxima, text_sums, text_tokens
    for start in range(0, size, BLOCK):
        token = start + lane
        x = tl.load(logits + row * row_stride + token, mask=token < size, other=float("-inf"))
        is_time = (token >= begin) & (token < end)
        text = x
        if RULES:
            special = (token >= eot) & (token < begin)
            is_text = (token < eot) | (token >= end)
            hidden = (no_text & is_text) | (is_first & special)
            hidden = hidden | (has_rules & (token == no_timestamps))
            number = token - begin
            outside = (has_rules & (number < min_time)) | (is_first & (number > max_first_time))
            hidden = hidden | (is_time & (paired | outside))
            x = tl.where(hidden, float("-inf"), x)
            text = tl.where(is_time, float("-inf"), x)
            time = tl.where(is_time, x, float("-inf"))
            time_maxima, time_sums, time_tokens = _add_block(
                time, token, time_maxima, time_sums, time_tokens
            )
        text_maxima, text_sums, text_tokens = _add_block(
            text, token, text_maxima, text_sums, text_tokens
        )
    best, log_sum, chosen = _reduce_lanes(text_maxima, text_sums, text_tokens)
    if RULES:
        time_best, time_log_sum, time_token = _reduce_lanes(time_maxima, time_sums, time_tokens)
        time_wins = has_rules & (time_log_sum > best)
        largest = tl.maximum(log_sum, time_log_sum)
        both = tl.log(tl.exp(log_sum - largest) + tl.exp(time_log_sum - largest)) + largest
        chosen = tl.where(time_wins | (time_best > best), time_token, chosen)
        best = tl.where(time_wins, time_best, tl.maximum(best, time_best))
        log_sum = tl.where(time_wins, time_log_sum, both)
    tl.store(tokens + row, chosen.to(tl.int64))
    tl.store(logprobs + row, best - log_sum)


def choose_token(
    logits: Tensor, state: tuple[Tensor, ...], boundaries: tuple[int, int, int, int], rules: bool
) -> tuple[Tensor, Tensor]:
    """The greedy choice, on the device.

    Arguments:
        logits: [R, V] float32, contiguous along V; banned tokens at -inf.
        state: of `filters.timestamps`, each [R].
        boundaries: end of text, the timestamps' begin and end, <|notimestamps|>; text is below the
            first, and from the timestamps' end on. Any numbers without `rules`.
        rules: whether any row samples timestamps.
    Returns:
        tokens [R] int64, and their log-probabilities [R] float32 among the tokens that the rules
        allow.
    """
    rows, size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    choose_token_kernel[(rows,)](
        logits,
        *(t.view(torch.uint8) if t.dtype == torch.bool else t for t in state),
        tokens,
        logprobs,
        logits.stride(0),
        size,
        *boundaries,
        RULES=rules,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return tokens, logprobs
