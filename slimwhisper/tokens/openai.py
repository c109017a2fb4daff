"""OpenAI's token tables by the size of the vocabulary, for comparing and writing other formats."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from slimwhisper.tokens.vocabulary import SIZES, get_tokenizer
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from slimwhisper.tokens.encoding import Tokenizer

# names that files of 2022 have, or other programs give
OLD_NAMES = {
    "<|nocaptions|>": "<|nospeech|>",
    "<|iw|>": "<|he|>",
    "<|jv|>": "<|jw|>",
}
USED = ("startoftranscript", "translate", "transcribe", "startofprev", "nospeech", "notimestamps")


def openai_tokenizer(dims: Dims) -> "Tokenizer | None":
    """openai-whisper's tokenizer; None if OpenAI has no vocabulary of this size."""
    return get_tokenizer(dims) if dims.n_vocab in SIZES else None


def language_count(dims: Dims) -> str:
    """ "en" for OpenAI's English vocabulary, "99" or "100" for the others, "?" for another size."""
    if dims.n_vocab not in SIZES:
        return "?"
    return str(dims.num_languages) if dims.is_multilingual else "en"


def text_tokens(tokenizer: "Tokenizer") -> list[bytes]:
    """The bytes of every text token, by id: all ids below <|endoftext|>."""
    return [tokenizer.encoding.decode_single_token_bytes(i) for i in range(tokenizer.eot)]


def special_tokens(tokenizer: "Tokenizer") -> dict[str, int]:
    """<|endoftext|> and all tokens after it, timestamps included, in the order of their ids."""
    return dict(sorted(tokenizer.special_tokens.items(), key=lambda item: item[1]))


def suppressed(tokenizer: "Tokenizer") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that `whisper` never samples, and never first, in order."""
    t = tokenizer
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return tuple(sorted({*t.non_speech_tokens, *prompts})), (*t.encode(" "), t.eot)


@cache
def byte_letters() -> tuple[str, ...]:
    """The printable character for each of the 256 bytes in GPT-2's vocabulary files.

    Bytes that are printable in Latin-1, except the soft hyphen, stand for themselves; the others
    are the characters from 256 up, in order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A text token as GPT-2's vocabulary files spell it: b" a" is "Ġa"."""
    return token.decode("latin-1").translate(byte_letters())


def with_new_names(ids: Mapping[str, int]) -> dict[str, int]:
    """Token -> id, with openai-whisper's names for those that have had others."""
    renamed = {new: ids[old] for old, new in OLD_NAMES.items() if old in ids and new not in ids}
    return {name: i for name, i in ids.items() if OLD_NAMES.get(name) not in renamed} | renamed


def is_openai_table(ids: Mapping[str, int], tokenizer: "Tokenizer") -> bool:
    """Whether token -> id are openai-whisper's as far as they decide a text: all tokens of text,
    and the special ones that are used. Timestamps are found by their place; a language's name
    counts only where the model has several.
    """
    ids, special = with_new_names(ids), special_tokens(tokenizer)
    text = map(spelled, text_tokens(tokenizer))
    expected = {token: i for i, token in enumerate(text) if token or token in ids}
    names = (*USED, *(tokenizer.all_language_codes if tokenizer.language else ()))
    used = {"<|endoftext|>": tokenizer.eot} | {f"<|{n}|>": special[f"<|{n}|>"] for n in names}
    stamps = {name: i for name, i in special.items() if i >= tokenizer.timestamp_begin}
    expected |= used | {name: i for name, i in stamps.items() if name in ids}
    taken = {*range(tokenizer.eot), *used.values()}
    others = [i for name, i in ids.items() if name not in expected]
    return all(ids.get(n) == i for n, i in expected.items()) and taken.isdisjoint(others)
