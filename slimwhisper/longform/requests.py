"""How a window is decoded: its search and rules, the text before it, and its attempts.

By the options: words and seconds become tokens. Of the attempts, whether one failed, and which one
to keep.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from slimwhisper.engine.requests import Attempt, Decoded, Rules, Search
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.options import RecordingOptions, SearchOptions
from slimwhisper.option_group import groups_of
from slimwhisper.tokens.options import prefix_tokens, prompt_tokens, suppressed_tokens
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, get_vocabulary, text_only
from slimwhisper.types import POSITIONS_PER_SECOND, Dims


def search_of(options: SearchOptions) -> Search:
    """The search of an engine, by the options."""
    return Search(
        beams=options.beam_size,
        patience=options.patience or 1.0,
        samples=options.best_of or 1,
        length_penalty=options.length_penalty,
    )


def make_rules(
    dims: Dims, options: RecordingOptions, vocabulary: Vocabulary | None = None
) -> Rules:
    """The sampling rules of some options; equal ones are the same object where no feature changes
    them.

    vocabulary: None: Whisper's for these dimensions. Raises OptionError as a feature does.
    """
    vocabulary = vocabulary or get_vocabulary(dims)
    rules = _rules(
        vocabulary,
        options.suppress_tokens,
        options.suppress_blank,
        options.max_initial_timestamp,
        timestamps=not options.without_timestamps,
        sample_len=options.sample_len or dims.n_text_ctx // 2,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
    )
    for group in groups_of(type(options), "change_rules"):
        rules = group.change_rules(options, rules, vocabulary)
    return rules


@lru_cache(maxsize=64)
def _rules(
    vocabulary: Vocabulary,
    suppressed: str | tuple[int | str, ...] | None,
    blank: bool,
    latest_first: float | None,
    **others: Any,
) -> Rules:
    """others: fields of `Rules`."""
    return Rules(
        suppress=torch.tensor(suppressed_tokens(vocabulary, suppressed), dtype=torch.int64),
        suppress_first=torch.tensor(_not_first(vocabulary) if blank else [], dtype=torch.int64),
        max_initial_timestamp=round(latest_first * POSITIONS_PER_SECOND) if latest_first else None,
        **others,
    )


def _not_first(vocabulary: Vocabulary) -> list[int]:
    """The tokens that no text may begin with: the model's list, or a space and the end."""
    if vocabulary.suppressed_first is not None:
        return list(vocabulary.suppressed_first)
    return [*vocabulary.tokenizer().encode(" "), vocabulary.eot]


class Prompts:
    """The text that conditions each window: an initial prompt, hotwords, and earlier text."""

    def __init__(
        self, tokenizer: Tokenizer, dims: Dims, options: RecordingOptions, most: int | None = None
    ) -> None:
        """most: tokens of previous text; None: as `whisper` has them."""
        self._tokenizer, self._options = tokenizer, options
        self._limit = dims.n_text_ctx // 2 - 1 if most is None else most
        # followed by all segments' tokens
        self._tokens = prompt_tokens(tokenizer, options.initial_prompt)
        self._initial = len(self._tokens)
        self._start = 0  # of the text that conditions the next window
        self._prefix = prefix_tokens(tokenizer, dims, options.prefix, options.sample_len)
        hotwords = None if self._prefix else options.hotwords
        self._hotwords = prompt_tokens(tokenizer, hotwords)[: self._limit]

    def add(self, tokens: list[int], keep: bool) -> None:
        """Add a window's tokens; `keep`: they condition the next window."""
        self._tokens += tokens
        if not keep:
            self._start = len(self._tokens)

    def text(self) -> str:
        """The text of all segments, without the special tokens that a model may put into it."""
        return self._tokenizer.decode(text_only(self._tokens[self._initial :], self._tokenizer))

    def of_window(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], int]:
        """The next window's prompt, and the index of <|startoftranscript|> in it.

        `tokenizer`: for the window's language.
        """
        before = [] if tokenizer.sot_prev is None else self._previous()
        if before:
            before = [tokenizer.sot_prev, *before]
        sot = tokenizer.sot_sequence
        if self._options.without_timestamps:
            sot = tokenizer.sot_sequence_including_notimestamps
        return (*before, *sot, *self._prefix), len(before)

    def _previous(self) -> list[int]:
        limit = self._limit - len(self._hotwords)
        carried = self._initial if self._options.carry_initial_prompt else 0
        initial = _last(self._tokens[:carried], limit)
        recent = self._tokens[max(carried, self._start) :]
        return self._hotwords + initial + _last(recent, limit - len(initial))


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[len(tokens) - min(count, len(tokens)) :]


COMPRESSION_RATIO = 2.4  # if the options have no threshold


def compression_ratio(text: str) -> float:
    """The length of a text over its length by zlib: above 2.4 it repeats itself. 0 if empty."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Candidate:
    """The result of one attempt."""

    result: Decoded
    ratio: float  # compression ratio of its text

    @staticmethod
    def of(result: Decoded, text: str) -> "Candidate":
        """Raises SlimWhisperError if the model's output was not finite."""
        if result.avg_logprob != result.avg_logprob:
            raise SlimWhisperError("the model returned NaN; use another dtype, such as float32")
        return Candidate(result, compression_ratio(text.strip()))

    def failed(self, options: RecordingOptions) -> bool:
        """Whether to try another temperature; not for silence."""
        max_ratio, min_logprob = options.compression_ratio_threshold, options.logprob_threshold
        improbable = min_logprob is not None and self.result.avg_logprob < min_logprob
        silence = options.no_speech_threshold
        if silence is not None and self.result.no_speech_prob > silence and improbable:
            return False
        return improbable or (max_ratio is not None and self.ratio > max_ratio)

    def is_silence(self, options: RecordingOptions) -> bool:
        """Whether there is probably no speech, and the text is not probable."""
        silence, min_logprob = options.no_speech_threshold, options.logprob_threshold
        if silence is None or self.result.no_speech_prob <= silence:
            return False
        return min_logprob is None or self.result.avg_logprob <= min_logprob


def attempts_of(options: RecordingOptions, seed: tuple[int, ...]) -> list[Attempt]:
    """The attempts at one window, in order, each at the next temperature until one does not fail.
    seed: of the window; each attempt has its own.
    """
    return [Attempt(t, (*seed, number)) for number, t in enumerate(options.temperatures)]


def choose(failed: Sequence[Candidate], options: RecordingOptions) -> Candidate:
    """Which of the failed attempts to keep: the last one or, with `on_failure="best"`, the most
    probable one that does not repeat itself; if all do, the one with the lowest compression ratio.
    """
    if options.on_failure != "best":
        return failed[-1]
    max_ratio = options.compression_ratio_threshold or COMPRESSION_RATIO
    varied = [c for c in failed if c.ratio <= max_ratio]
    if varied:
        return max(varied, key=lambda c: c.result.avg_logprob)
    return min(failed, key=lambda c: c.ratio)
