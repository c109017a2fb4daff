"""A text that somebody expects, checked token by token in one pass (speculative decoding:
Leviathan et al., arXiv 2211.17192, for greedy decoding).

The prompt and the draft are read together, so that the logits before every drafted token are there
at once. The longest beginning that greedy decoding would have written, by all of the window's
rules, is kept; the text goes on from there. What the cache holds of the rest is overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.forms import form_of
from slimwhisper.cache.plan import CachePlan
from slimwhisper.engine.requests import Window
from slimwhisper.engine.rules import UNSAID, Said, TimestampState, most_likely, suppress
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Agreed:
    """The beginning of a window's draft that decoding agrees with."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # of each
    said: Said = UNSAID  # what the timestamp rules remember of them


def may_draft(plan: CachePlan) -> bool:
    """Whether the cache of the text can take tokens back: one that drops some, sums over them or
    rounds them to float8 after a prompt has read them cannot.
    """
    return all(form_of(w.form).exact and w.columns is None for w in plan.self_)


def usable_draft(window: Window, draft: tuple[int, ...], context: int, eot: int) -> tuple[int, ...]:
    """The tokens of a draft of a window's text that are worth checking: greedy only, up to
    <|endoftext|>, and one token less than there is room for. context: n_text_ctx.
    """
    rules = window.rules
    if not draft or rules is None or window.attempt.temperature > 0:
        return ()
    room = min(rules.sample_len, context + 1 - len(window.prompt)) - 1
    draft = draft[: max(room, 0)]
    return draft[: draft.index(eot)] if eot in draft else draft


def agree(
    window: Window,
    draft: Sequence[int],
    logits: Tensor,
    vocabulary: Vocabulary,
    kernels: Kernels,
) -> Agreed:
    """How far greedy decoding writes the draft. One read by the host.

    logits [n, V], floating, before each of its n tokens; they are changed.
    """
    rules = window.rules
    assert rules is not None and len(logits) == len(draft)
    suppress(logits, rules.suppress)
    suppress(logits[0], rules.suppress_first)
    said = [UNSAID]  # before each token
    for token in draft:
        said.append(said[-1].then(token, vocabulary.timestamps))
    limit = rules.max_initial_timestamp
    state = TimestampState.of(
        said[:-1], rules.timestamps, vocabulary.size if limit is None else limit, logits.device
    )
    tokens, logprobs = most_likely(logits, state, vocabulary, rules.timestamps, kernels)
    chosen, sums = torch.stack([tokens.double(), logprobs.double()]).tolist()
    count = next((i for i, t in enumerate(draft) if int(chosen[i]) != t), len(draft))
    return Agreed(tuple(draft[:count]), tuple(sums[:count]), said[count])
