"""The most likely token of each row under the timestamp rules, and its log-probability: Triton.

One pass over the logits, which `slimwhisper.engine.rules` (the reference, in PyTorch) reads and
writes about ten times. Text and special tokens form one side, timestamps the other, each with a
running maximum and sum; at the end the rules decide which side the token comes from.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits per step of the loop


@triton.jit
def _gathered(best, total, place):
    """Maxima, sums and places per lane, [BLOCK] -> those over all lanes, []."""
    top = tl.max(best, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)  # a side may be empty
    first = tl.min(tl.where(best == top, place, 2147483647), 0)
    return top, tl.log(tl.sum(total * tl.exp(best - safe), 0)) + safe, first


@triton.jit
def _taken(x, place, best, total, where):
    """The running maxima, sums of exponentials and places, each [BLOCK], with one more value x."""
    new = tl.maximum(best, x)
    safe = tl.where(new == float("-inf"), 0.0, new)
    total = total * tl.exp(best - safe) + tl.exp(x - safe)
    return new, total, tl.where(x > best, place, where)


@triton.jit
def choose_token_kernel(
    logits,
    enabled,  # [R] of TimestampState, as are the next five
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
    end,  # the first token behind them
    no_timestamps,
    RULES: tl.constexpr,  # some row samples timestamps
    BLOCK: tl.constexpr,
):
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    on = False
    first = False
    paired = False
    no_text = False
    floor = tl.full([], 0, tl.int64)
    limit = tl.full([], 0, tl.int64)
    if RULES:
        on = tl.load(enabled + row) != 0
        stamped = tl.load(last + row) != 0
        before = tl.load(before_last + row) != 0
        first = on & (tl.load(count + row) == 0)
        paired = on & stamped & before & (first == 0)
        no_text = (on & stamped & (before == 0)) | first
        floor = tl.load(latest + row) + tl.where(stamped & (before == 0), 0, 1)
        limit = tl.load(initial_limit + row)
    lane = tl.arange(0, BLOCK)
    text_best = tl.full([BLOCK], float("-inf"), tl.float32)
    text_sum = tl.zeros([BLOCK], tl.float32)
    text_place = tl.zeros([BLOCK], tl.int32)
    stamp_best = tl.full([BLOCK], float("-inf"), tl.float32)
    stamp_sum = tl.zeros([BLOCK], tl.float32)
    stamp_place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        place = start + lane
        x = tl.load(logits + row * row_stride + place, mask=place < size, other=float("-inf"))
        stamp = (place >= begin) & (place < end)
        text = x
        if RULES:
            special = (place >= eot) & (place < begin)
            written = (place < eot) | (place >= end)
            hidden = (no_text & written) | (first & special)
            hidden = hidden | (on & (place == no_timestamps))
            number = place - begin
            outside = (on & (number < floor)) | (first & (number > limit))
            hidden = hidden | (stamp & (paired | outside))
            x = tl.where(hidden, float("-inf"), x)
            text = tl.where(stamp, float("-inf"), x)
            times = tl.where(stamp, x, float("-inf"))
            stamp_best, stamp_sum, stamp_place = _taken(
                times, place, stamp_best, stamp_sum, stamp_place
            )
        text_best, text_sum, text_place = _taken(text, place, text_best, text_sum, text_place)
    best, mass, token = _gathered(text_best, text_sum, text_place)
    if RULES:
        s_best, s_mass, s_token = _gathered(stamp_best, stamp_sum, stamp_place)
        stamp_wins = on & (s_mass > best)
        top = tl.maximum(mass, s_mass)
        both = tl.log(tl.exp(mass - top) + tl.exp(s_mass - top)) + top
        token = tl.where(stamp_wins | (s_best > best), s_token, token)
        best = tl.where(stamp_wins, s_best, tl.maximum(best, s_best))
        mass = tl.where(stamp_wins, s_mass, both)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, best - mass)


def choose_token(
    logits: Tensor,
    state: tuple[Tensor, ...],
    boundaries: tuple[int, int, int, int],
    rules: bool,
) -> tuple[Tensor, Tensor]:
    """The greedy choice, on the device.

    Arguments:
        logits: [R, V] float32, contiguous along V; banned tokens at -inf.
        state: `rules.TimestampState.tensors()`, each [R].
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
    flags = [t.view(torch.uint8) if t.dtype == torch.bool else t for t in state]
    choose_token_kernel[(rows,)](
        logits,
        *flags,
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
