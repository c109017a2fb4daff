"""The token ids that decoding needs, read from openai-whisper's tokenizer."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from slimwhisper.errors import OptionError
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The special tokens of a vocabulary, the same for all languages and tasks."""

    size: int
    eot: int  # <|endoftext|>; text tokens are below it, special tokens from here on
    sot: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # <|0.00|>; from here on, one token per 20 ms
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

    Raises `OptionError` for a language that the model does not know.
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
