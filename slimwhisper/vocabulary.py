"""The token ids that decoding needs, read from openai-whisper's tokenizer."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from slimwhisper.errors import OptionError
from slimwhisper.types import CHUNK_SECONDS, Dims, Options, Rules

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Special tokens of one vocabulary, whatever the language and task."""

    size: int
    eot: int  # <|endoftext|>; text tokens are below, special ones from here on
    sot: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # <|0.00|>; one token for every 20 ms from here on
    languages: dict[int, str]  # token: code


def get_tokenizer(dims: Dims, language: str | None = None, task: str = "transcribe") -> "Tokenizer":
    """openai-whisper's tokenizer for a model; cached there."""
    from whisper import tokenizer

    return tokenizer.get_tokenizer(
        dims.is_multilingual,
        num_languages=dims.num_languages,
        language=language or ("en" if dims.is_multilingual else None),
        task=task,
    )


def get_vocabulary(dims: Dims) -> Vocabulary:
    t = get_tokenizer(dims)
    codes = zip(t.all_language_tokens, t.all_language_codes, strict=True)
    return Vocabulary(
        size=dims.n_vocab,
        eot=t.eot,
        sot=t.sot,
        no_speech=t.no_speech,
        no_timestamps=t.no_timestamps,
        timestamp_begin=t.timestamp_begin,
        languages=dict(codes) if dims.is_multilingual else {},
    )


def language_code(language: str, dims: Dims) -> str:
    """A code ("de") or English name ("German") -> the code.

    Raises `OptionError` for what the model cannot hear.
    """
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    name = language.lower()
    code = TO_LANGUAGE_CODE.get(name, name)
    known = list(LANGUAGES)[: dims.num_languages] if dims.is_multilingual else ["en"]
    if code in known:
        return code
    if code in LANGUAGES:
        reason = "this model is English-only" if not dims.is_multilingual else "not in this model"
        raise OptionError(f"language {language!r}: {reason}; choose a multilingual model, or 'en'")
    near = get_close_matches(name, [*LANGUAGES, *TO_LANGUAGE_CODE], n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "use a code such as 'en' or 'de'"
    raise OptionError(f"language {language!r} is not one that Whisper knows; {hint}")


def suppressed_tokens(tokenizer: "Tokenizer", wanted: str | tuple[int, ...] | None) -> list[int]:
    """Tokens never sampled: those asked for, and the specials that a prompt alone may hold.

    -1 among `wanted` stands for symbols that are not spoken. None or "" suppresses nothing.
    """
    if wanted is None or wanted in ("", ()):
        return []
    try:
        ids = [int(t) for t in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    except ValueError:
        raise OptionError(
            f"suppress_tokens {wanted!r}: give token ids with commas between, or -1"
        ) from None
    vocabulary = tokenizer.encoding.n_vocab
    if any(not -1 <= t < vocabulary for t in ids):
        raise OptionError(f"suppress_tokens {wanted!r}: token ids are -1 to {vocabulary - 1}")
    if -1 in ids:
        ids = [t for t in ids if t >= 0] + list(tokenizer.non_speech_tokens)
    t = tokenizer
    return [*ids, t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech]


def make_rules(dims: Dims, options: Options) -> Rules:
    """The sampling rules that the options ask for; equal ones are one object."""
    return _rules(
        dims,
        options.suppress_tokens,
        options.suppress_blank,
        not options.without_timestamps,
        options.max_initial_timestamp,
        options.sample_len or dims.n_text_ctx // 2,
    )


@lru_cache(maxsize=64)  # rows that share their rules are filtered together
def _rules(
    dims: Dims,
    suppressed: str | tuple[int, ...] | None,
    blank: bool,
    timestamps: bool,
    latest_first: float | None,
    sample_len: int,
) -> Rules:
    tokenizer = get_tokenizer(dims)
    first = [*tokenizer.encode(" "), tokenizer.eot] if blank else []
    limit = round(latest_first * dims.n_audio_ctx / CHUNK_SECONDS) if latest_first else None
    return Rules(
        suppress=torch.tensor(suppressed_tokens(tokenizer, suppressed), dtype=torch.int64),
        suppress_first=torch.tensor(first, dtype=torch.int64),
        timestamps=timestamps,
        max_initial_timestamp=limit,
        sample_len=sample_len,
    )


class Prompts:
    """The text that conditions each window: an initial prompt, hotwords, what was said before."""

    def __init__(self, tokenizer: "Tokenizer", dims: Dims, options: Options) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._room = dims.n_text_ctx // 2 - 1  # tokens of previous text

        def encode(text: str | None) -> list[int]:
            return tokenizer.encode(" " + text.strip()) if text else []

        self._tokens = encode(options.initial_prompt)  # then all segments' tokens
        self._initial = len(self._tokens)
        self._since = 0  # where the text begins that conditions the next window
        self._hotwords = [] if options.prefix else encode(options.hotwords)[: self._room]
        self._prefix = encode(options.prefix)
        most = dims.n_text_ctx // 2 - (options.sample_len or dims.n_text_ctx // 2)
        self._prefix = self._prefix[-most:]  # all of it where that is 0, as in `whisper.decode`
        longest = self._room + len(self._prefix) + 8
        if longest >= dims.n_text_ctx:
            raise OptionError(
                f"prefix: {len(self._prefix)} tokens leave no room for the text; "
                f"give at most {dims.n_text_ctx - self._room - 9}"
            )

    def add(self, tokens: list[int], keep: bool) -> None:
        """Take note of a window's tokens; `keep`: they condition the next window."""
        self._tokens += tokens
        if not keep:
            self._since = len(self._tokens)

    def text(self) -> str:
        """All segments' text."""
        return self._tokenizer.decode(self._tokens[self._initial :])

    def of_window(self, tokenizer: "Tokenizer") -> tuple[tuple[int, ...], int]:
        """The next window's prompt, and where <|startoftranscript|> stands in it.

        `tokenizer`: of the window's language.
        """
        before = self._previous()
        if before:
            before = [tokenizer.sot_prev, *before]
        sot = tokenizer.sot_sequence
        if self._options.without_timestamps:
            sot = tokenizer.sot_sequence_including_notimestamps
        return (*before, *sot, *self._prefix), len(before)

    def _previous(self) -> list[int]:
        room = self._room - len(self._hotwords)
        if not self._options.carry_initial_prompt:
            return self._hotwords + _last(self._tokens[self._since :], room)
        initial = _last(self._tokens[: self._initial], room)
        recent = self._tokens[max(self._initial, self._since) :]
        return self._hotwords + initial + _last(recent, room - len(initial))


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[len(tokens) - min(count, len(tokens)) :]
