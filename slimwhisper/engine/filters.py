"""Filters of logits: Whisper's rules, limits on repetition, bonuses, and those that a group uses.

They are those of `whisper.decoding`, `SuppressTokens`, `SuppressBlank` and `ApplyTimestampRules`,
without a loop over rows; and CTranslate2's `repetition_penalty` (arXiv 1909.05858) and
`no_repeat_ngram_size`, which look at the tokens that were sampled in this window, timestamps too,
and not at the prompt.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import reduce
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.requests import Rules
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.types import SpecialTokens

NEVER = float("-inf")

State = tuple[Tensor, ...]  # [R, ...] each


class Texts(NamedTuple):
    """Some texts, R of them, before their next token."""

    tokens: Tensor  # [R, L] int64, of which the first `counts` were sampled
    counts: Tensor  # [R] int64
    states: dict["LogitFilter", State]  # of the filters in use


class Draws(NamedTuple):
    """Random choices of the next tokens of R texts."""

    temperatures: Tensor  # [R] float32; of 0: no choice
    keys: Tensor  # [R] int64
    # logits [R, V], tokens [R], and 1 for those to choose from, [V], or None for all -> the tokens,
    # replaced where the temperature is above 0
    replaced: Callable[[Tensor, Tensor, Tensor | None], Tensor]


class LogitFilter:
    """A rule for the next token. A new one is a class with these methods, in `FILTERS`.

    What a filter knows of a text is its state: tensors with one row for each text. Rows move when a
    window ends, and beams copy them. So a filter works on the states that it is given. On the
    device, nothing is copied to the host.

    Attributes:
        fixed: How many tensors, the first ones of the state, stay while a text lasts.
        state: The state of all rows of the group, [rows, ...] each.
    """

    fixed: ClassVar[int] = 0
    state: State

    @abstractmethod
    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        """Make the state of rows that the filter leaves as they are.

        Args:
            rows: The number of rows of the group.
            vocabulary: The special tokens.
            device: Where the state is.
        """

    @staticmethod
    @abstractmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """Return what `apply` must know on the host; graphs are recorded for it.

        Args:
            rules: The rules of some windows.

        Returns:
            The setting. None means that the windows have no use for the filter.
        """

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Hold what all texts of the group need.

        Args:
            rules: The rules of all windows.

        Returns:
            Whether tensors were replaced: graphs that read them must be recorded again.
        """
        return False

    @abstractmethod
    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """Compute a text's state before each of its T tokens, and after the last, on the host.

        Args:
            rules: The rules of its window.
            tokens: The tokens.

        Returns:
            The tensors of the state, [T + 1, ...] each.
        """

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """Change the logits of the texts' next tokens, in place.

        Args:
            logits: The logits [R, V], float32 or float64.
            texts: The texts.
            setting: What `setting` returned for their windows.
        """

    def after(self, state: State, tokens: Tensor) -> State:
        """Return the state of each text after one more token.

        Args:
            state: The state before it.
            tokens: The tokens [R] int64.

        Returns:
            The new state.
        """
        return state


WIDTH = 128  # of a state: Whisper's list has about 90 tokens


class Suppression(LogitFilter):
    """Bans the tokens of each row, but not those that are banned first alone: see `forbid`."""

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


class Repetition(LogitFilter):
    """The limits of each row."""

    fixed = 2

    def __init__(self, rows: int, vocabulary: SpecialTokens, device: torch.device) -> None:
        self.state = (  # both [R]
            # logits are divided by it, or multiplied below 0; 1: none
            torch.ones(rows, dtype=torch.float32, device=device),
            # tokens in a row that may occur once only; 0: no limit
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    @staticmethod
    def setting(rules: Sequence[Rules]) -> Hashable:
        """The largest n-gram; None without any limit."""
        limited = (r for r in rules if r.repetition_penalty != 1 or r.no_repeat_ngram_size > 0)
        return max((r.no_repeat_ngram_size for r in limited), default=None)

    def along(self, rules: Rules, tokens: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The same at each token."""
        shape = len(tokens) + 1
        return (
            np.full(shape, rules.repetition_penalty, dtype=np.float32),
            np.full(shape, rules.no_repeat_ngram_size),
        )

    def apply(self, logits: Tensor, texts: Texts, setting: Hashable) -> None:
        """setting: the largest n-gram of the rows."""
        (penalties, ngrams), (tokens, counts, _) = texts.states[self], texts
        _penalize(logits, tokens, counts, penalties.to(logits.dtype)[:, None])
        if isinstance(setting, int) and setting:
            _forbid_ngrams(logits, tokens, counts, ngrams[:, None], setting)


def _penalize(logits: Tensor, texts: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """Penalties [R, 1]. A token that occurs twice is written twice, with the same value."""
    index = torch.arange(texts.shape[1], device=texts.device)
    # behind the text, its first token again; a row without text writes what was there
    tokens = torch.where(index < counts[:, None], texts, texts[:, :1])
    before = logits.gather(1, tokens)
    after = torch.where(before < 0, before * penalties, before / penalties)
    logits.scatter_(1, tokens, torch.where(counts[:, None] > 0, after, before))


def _forbid_ngrams(logits: Tensor, texts: Tensor, counts: Tensor, sizes: Tensor, most: int) -> None:
    """Forbid each token of the text that follows the last `sizes - 1` [R, 1] tokens elsewhere."""
    index, counts = torch.arange(texts.shape[1], device=texts.device), counts[:, None]
    repeats = (sizes > 0) & (index >= sizes - 1) & (index < counts)
    for back in range(1, most):
        before = texts.gather(1, (index - back).clamp_(min=0).expand_as(texts))
        last = texts.gather(1, (counts - back).clamp_(min=0))
        repeats &= (before == last) | (back >= sizes)
    banned = torch.zeros_like(texts, dtype=logits.dtype).masked_fill_(repeats, NEVER)
    logits.scatter_add_(1, texts, banned)


class Timestamps(LogitFilter):
    """Whisper's rules of timestamps, `ApplyTimestampRules`.

    They come in pairs, never decrease, come first, and win if they are more likely, summed, than
    any other token. The state of each row, in this order: enabled, bool: False where timestamps are
    not sampled; initial_limit, int64: the largest first timestamp, in tokens from <|0.00|>; last
    and before_last, bool: whether the last token, and the one before, is a timestamp, True where
    there is none; latest, int64: the latest timestamp in tokens from <|0.00|>, -1 where there is
    none yet.
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
        stamps = self.vocabulary.timestamps
        is_stamp = tokens >= stamps.start
        if stamps.stop < self.vocabulary.size:
            is_stamp &= tokens < stamps.stop
        latest = torch.where(is_stamp, tokens - stamps.start, latest)
        return enabled, limit, is_stamp, last.clone(), latest

    def choose(
        self,
        logits: Tensor,
        texts: Texts,
        kernels: Kernels,
        count: int = 1,
        draws: Draws | None = None,
        ranking: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The best tokens of each row, under these rules if the texts have them in use, and their
        log-probabilities: [R, count] int64 and floating; one is by the draws, several are by the
        ranking [R, V]. logits [R, V] may be changed in place.
        """
        used = self in texts.states
        # without the rules, nothing reads the states
        state = (*texts.states[self], texts.counts) if used else (texts.counts,) * 6

        def by_torch() -> tuple[Tensor, Tensor]:
            """[R, count] int64 and floating."""
            if used:
                apply_timestamp_rules(logits, state, self.vocabulary)
            if count > 1:
                logprobs = logits.log_softmax(dim=-1)
                ranks = logprobs if ranking is None else ranking.where(logits > NEVER, NEVER)
                tokens = ranks.topk(count, dim=-1).indices
                return tokens, logprobs.gather(1, tokens)
            tokens = logits.argmax(dim=-1)
            if draws is not None:
                tokens = draws.replaced(logits, tokens, None)
            return tokens[:, None], logits.log_softmax(dim=-1).gather(1, tokens[:, None])

        numbers = self.vocabulary.boundaries if used else (0, 0, 0, 0)
        drawn = () if draws is None else draws[:2]
        return kernels.choose_token(logits, state, numbers, used, by_torch, count, drawn, ranking)


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


Chosen = tuple[Tensor, Tensor]  # tokens [R] int64, and their log-probabilities [R]


class BonusFilter(LogitFilter):
    """A filter that gives texts bonuses, which beams are ranked with. At most one is in use."""

    @abstractmethod
    def boosted(self, state: State, logits: Tensor) -> Tensor:
        """Return logits [R, V] with all bonuses, valid until the next call."""

    @abstractmethod
    def gained(self, state: State, tokens: Tensor) -> Tensor:
        """What the texts have gained with one of these tokens each, [R, n] -> [R, n] float32."""

    @abstractmethod
    def kept(self, rows: slice) -> Tensor:
        """What the texts in some rows have gained and keep if they end here: [R] float32."""

    @abstractmethod
    def prefer(
        self, state: State, logits: Tensor, chosen: Chosen, draws: Draws | None = None
    ) -> Chosen:
        """Return the chosen text token of each row, or one that its bonus puts above it.

        A token that is no text stays: bonuses do not decide where a text or a segment ends.

        Args:
            state: The state of the texts.
            logits: The logits [R, V] by which tokens were chosen. Of banned tokens they are -inf,
                but not of those that the timestamp rules ban: these ban all text or none.
            chosen: The chosen tokens, and their log-probabilities.
            draws: Those of the tokens. None means the most likely ones.

        Returns:
            The tokens, and their log-probabilities by the model without the bonus.
        """


# in the order in which they are applied, but for the timestamp rules, the last ones; a feature with
# a filter of its own appends it
FILTERS: list[type[LogitFilter]] = [Suppression, Repetition, Timestamps]

InUse = dict[LogitFilter, Hashable]  # filters, each with its setting


class Filters:
    """The filters that the texts of a row group have had use for so far."""

    def __init__(
        self, rows: int, vocabulary: SpecialTokens, device: torch.device, kernels: Kernels
    ) -> None:
        self.rows, self.vocabulary, self.device, self.kernels = rows, vocabulary, device, kernels
        self.timestamps = Timestamps(rows, vocabulary, device)  # whose kernel chooses tokens, too
        self.made: dict[type[LogitFilter], LogitFilter] = {Timestamps: self.timestamps}

    def tensors(self) -> Iterable[Tensor]:
        """The states of all rows, [rows, ...] each."""
        return chain.from_iterable(f.state for f in self.made.values())

    def prepare(self, rules: Sequence[Rules]) -> bool:
        """Make and prepare the filters for all texts; return whether to record graphs again."""
        for kind in FILTERS:
            if kind not in self.made and kind.setting(rules) is not None:
                self.made[kind] = kind(self.rows, self.vocabulary, self.device)
        return any([f.prepare(rules) for f in self.made.values()])

    def in_use(self, rules: Sequence[Rules]) -> InUse:
        """The filters that some windows use."""
        settings = {kind: kind.setting(rules) for kind in FILTERS}
        return {self.made[kind]: s for kind, s in settings.items() if s is not None}

    def choose(
        self, in_use: InUse, logits: Tensor, texts: Texts, draws: Draws | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return each text's most likely next token [R] int64, or one by the draws, and its
        log-probability [R].
        """
        self._apply(in_use, logits, texts)
        tokens, logprobs = self.timestamps.choose(logits, texts, self.kernels, draws=draws)
        chosen, bonus = (tokens[:, 0], logprobs[:, 0]), bonus_of(in_use)
        return chosen if bonus is None else bonus.prefer(texts.states[bonus], logits, chosen, draws)

    def best(
        self, in_use: InUse, logits: Tensor, texts: Texts, count: int
    ) -> tuple[Tensor, Tensor]:
        """Return each text's best next tokens by logits and bonuses, [R, count] int64, the best
        first, and their log-probabilities by the model, [R, count].
        """
        self._apply(in_use, logits, texts)
        bonus = bonus_of(in_use)
        ranking = None if bonus is None else bonus.boosted(texts.states[bonus], logits)
        return self.timestamps.choose(logits, texts, self.kernels, count, ranking=ranking)

    def _apply(self, in_use: InUse, logits: Tensor, texts: Texts) -> None:
        """All but the timestamp rules."""
        for f, setting in in_use.items():
            if f is not self.timestamps:
                f.apply(logits, texts, setting)


def bonus_of(filters: Iterable[LogitFilter]) -> BonusFilter | None:
    """The filter with bonuses, if there is one among these."""
    return next((f for f in filters if isinstance(f, BonusFilter)), None)
