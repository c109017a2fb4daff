"""The text that conditions each window."""

from typing import TYPE_CHECKING

from slimwhisper.longform.options import DecodingOptions
from slimwhisper.tokens.prompts import prefix_tokens, prompt_tokens
from slimwhisper.tokens.vocabulary import text_only
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer


class Prompts:
    """The text that conditions each window: an initial prompt, hotwords, and earlier text."""

    def __init__(self, tokenizer: "Tokenizer", dims: Dims, options: DecodingOptions) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._limit = dims.n_text_ctx // 2 - 1  # most tokens of previous text
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

    def of_window(self, tokenizer: "Tokenizer") -> tuple[tuple[int, ...], int]:
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
        if not self._options.carry_initial_prompt:
            return self._hotwords + _last(self._tokens[self._start :], limit)
        initial = _last(self._tokens[: self._initial], limit)
        recent = self._tokens[max(self._initial, self._start) :]
        return self._hotwords + initial + _last(recent, limit - len(initial))


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[len(tokens) - min(count, len(tokens)) :]
