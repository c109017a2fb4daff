"""Verifies an expected text against greedy decoding in one forward pass (speculative decoding:
Leviathan et al., arXiv 2211.17192, for greedy decoding).

Prompt and draft are read in one pass, which gives the logits before every drafted token. The
longest prefix that greedy decoding would have written, by all of the window's rules, is accepted,
and decoding continues after it. The cache of the rejected tokens is overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import CachePlan
from slimwhisper.engine import rules as filters
from slimwhisper.engine.hot_words.rows import HotWordRows
from slimwhisper.engine.repetition import RepetitionLimits
from slimwhisper.engine.requests import Window
from slimwhisper.engine.rules import NO_HISTORY, TimestampHistory, TimestampState
from slimwhisper.engine.uploads import upload
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class AcceptedPrefix:
    """The beginning of a window's draft that decoding would have written itself."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # of each
    history: TimestampHistory = NO_HISTORY  # what the timestamp rules remember of them


def may_draft(plan: CachePlan) -> bool:
    """Whether rejected tokens can be removed from the cache of the text. They cannot where a form
    drops tokens, sums over them, or rounds them to float8 after a prompt has read them.
    """
    return plan.exact_self and all(w.column_scales is None for w in plan.self_)


def usable_draft(window: Window, draft: tuple[int, ...], context: int, eot: int) -> tuple[int, ...]:
    """The part of a window's draft to verify: greedy only, up to <|endoftext|>, and one token
    less than there is room for. context: n_text_ctx.
    """
    rules = window.rules
    if not draft or rules is None or window.attempt.temperature > 0:
        return ()
    limit = min(rules.sample_len, context + 1 - len(window.prompt)) - 1
    draft = draft[: max(limit, 0)]
    return draft[: draft.index(eot)] if eot in draft else draft


def verify_hidden(
    window: Window,
    draft: Sequence[int],
    hidden: Tensor,
    model: Model,
    vocabulary: Vocabulary,
    hot_words: HotWordRows | None,
) -> tuple[AcceptedPrefix, Tensor]:
    """The part of a draft that decoding accepts, and the logits [2, V] at the text's start and
    after that part. hidden [T, d]: of the prompt and the draft, after the last norm.
    """
    start, last, accepted = window.sot_index, len(window.prompt) - 1, AcceptedPrefix()
    needed = torch.cat((hidden[start : start + 1], hidden[last : last + len(draft) + 1]))
    logits = model.decoder.logits(needed)  # in one product, as its weights are large
    if draft:
        kernels = model.plan.kernels
        accepted = verify(window, draft, logits[1:-1].clone(), vocabulary, kernels, hot_words)
    return accepted, torch.stack((logits[0], logits[1 + len(accepted.tokens)]))


def verify(
    window: Window,
    draft: Sequence[int],
    logits: Tensor,
    vocabulary: Vocabulary,
    kernels: Kernels,
    hot_words: HotWordRows | None = None,
) -> AcceptedPrefix:
    """The prefix of a draft that greedy decoding writes itself, with one read by the host.

    logits [n, V], floating, before each of its n tokens; they are changed. hot_words: with the
    window's list, if it has one.
    """
    rules = window.rules
    assert rules is not None and len(logits) == len(draft)
    histories = [NO_HISTORY]  # before each token
    for token in draft:
        histories.append(histories[-1].extended(token, vocabulary.timestamps))
    limit = rules.max_initial_timestamp
    limit = vocabulary.size if limit is None else limit
    texts = [(rules.timestamps, limit, *history) for history in histories[:-1]]
    numbers, banned, first, tokens = upload(
        logits.device, texts, rules.suppress, rules.suppress_first, draft
    )
    logits.index_fill_(1, banned, filters.NEVER)
    logits[0].index_fill_(0, first, filters.NEVER)
    if rules.limits_repetition:
        repetition = RepetitionLimits.allocate(len(draft), logits.device)
        every, most = slice(None), rules.no_repeat_ngram_size
        repetition.start(every, rules.repetition_penalty, most)
        counts = torch.arange(len(draft), device=logits.device)
        repetition.apply(logits, every, tokens.expand(len(draft), -1), counts, most)
    state = TimestampState.of(numbers)
    tokens, logprobs = filters.most_likely(logits, state, vocabulary, rules.timestamps, kernels)
    if hot_words is not None and rules.hot_words is not None:
        (nodes,) = upload(logits.device, hot_words.nodes_of(rules.hot_words, draft))
        tokens, logprobs = hot_words.prefer(nodes, logits, tokens, logprobs)
    chosen, sums = torch.stack([tokens.to(logprobs.dtype), logprobs]).tolist()
    count = next((i for i, t in enumerate(draft) if int(chosen[i]) != t), len(draft))
    return AcceptedPrefix(tuple(draft[:count]), tuple(sums[:count]), histories[count])
