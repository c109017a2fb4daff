"""The engine's search and rules by the options: words and seconds become tokens."""

from dataclasses import replace
from functools import lru_cache

import torch

from slimwhisper.engine.hot_words.automaton import HotWords, make_hot_words
from slimwhisper.engine.requests import Rules, Search
from slimwhisper.longform.options import DecodingOptions, SearchOptions
from slimwhisper.tokens.spellings import spellings, word_ends
from slimwhisper.tokens.suppression import suppressed_first_tokens, suppressed_tokens
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, MEL_FRAMES_PER_POSITION, Dims


def search_of(options: SearchOptions) -> Search:
    """The search of an engine, by the options."""
    return Search(
        beams=options.beam_size,
        patience=options.patience or 1.0,
        samples=options.best_of or 1,
        length_penalty=options.length_penalty,
    )


def make_rules(dims: Dims, options: DecodingOptions, vocabulary: Vocabulary | None = None) -> Rules:
    """The sampling rules of some options; equal rules are the same object.

    vocabulary: None: Whisper's for these dimensions. Raises OptionError for hot words that it
    cannot write.
    """
    vocabulary = vocabulary or get_vocabulary(dims)
    rules = _rules(
        vocabulary,
        suppressed=options.suppress_tokens,
        blank=options.suppress_blank,
        timestamps=not options.without_timestamps,
        latest_first=options.max_initial_timestamp,
        sample_len=options.sample_len or dims.n_text_ctx // 2,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
    )
    if not options.hot_words:
        return rules
    lines = tuple(options.hot_words)
    return _with_hot_words(rules, hot_words(vocabulary, lines, options.hot_word_bonus))


@lru_cache(maxsize=8)  # lists may be large
def hot_words(vocabulary: Vocabulary, lines: tuple[str, ...], bonus: float) -> HotWords:
    """The automaton of a list; equal ones are the same object. lines, bonus: as of `spellings`.

    Raises OptionError as `spellings` and `make_hot_words`.
    """
    return make_hot_words(spellings(vocabulary, lines, bonus), word_ends(vocabulary))


@lru_cache(maxsize=8)
def _with_hot_words(rules: Rules, words: HotWords) -> Rules:
    return replace(rules, hot_words=words)


@lru_cache(maxsize=64)
def _rules(
    vocabulary: Vocabulary,
    *,
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
