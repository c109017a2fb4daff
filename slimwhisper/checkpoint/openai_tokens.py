"""OpenAI's token tables by the size of the vocabulary, for comparing and writing other formats."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

_KINDS = {51_864: (False, 99), 51_865: (True, 99), 51_866: (True, 100)}
OLD_NAMES = {"<|nocaptions|>": "<|nospeech|>"}  # in files of 2022


def openai_tokenizer(n_vocab: int) -> "Tokenizer | None":
    """openai-whisper's tokenizer for this size; None for a size that OpenAI does not have."""
    from whisper.tokenizer import get_tokenizer

    if n_vocab not in _KINDS:
        return None
    multilingual, languages = _KINDS[n_vocab]
    return get_tokenizer(multilingual, num_languages=languages)


def language_count(n_vocab: int) -> str:
    """ "en" for OpenAI's English vocabulary, "99" or "100" for the others, "?" for another size."""
    multilingual, languages = _KINDS.get(n_vocab, (True, "?"))
    return str(languages) if multilingual else "en"


def text_tokens(tokenizer: "Tokenizer") -> list[bytes]:
    """The bytes of every token of text, by id: all ids below <|endoftext|>."""
    return [tokenizer.encoding.decode_single_token_bytes(i) for i in range(tokenizer.eot)]


def special_tokens(tokenizer: "Tokenizer") -> dict[str, int]:
    """<|endoftext|> and all that follow it, timestamps included, in the order of their ids."""
    return dict(sorted(tokenizer.special_tokens.items(), key=lambda item: item[1]))


@cache
def byte_letters() -> tuple[str, ...]:
    """The printable character by which GPT-2's vocabulary files stand for each of the 256 bytes.

    Bytes that are printable in Latin-1, the soft hyphen excepted, stand for themselves; the others
    become the characters from 256 up, in order.
    """
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = iter(range(256, 512))
    return tuple(chr(byte if byte in kept else next(free)) for byte in range(256))


@cache
def _letters() -> dict[int, str]:
    """`byte_letters` by byte."""
    return dict(enumerate(byte_letters()))


def spelled(token: bytes) -> str:
    """A token of text as GPT-2's vocabulary files spell it: b" a" is "Ġa"."""
    return token.decode("latin-1").translate(_letters())


def full_table(tokenizer: "Tokenizer") -> list[str]:
    """Every token as Hugging Face and CTranslate2 spell it, by id."""
    return [*map(spelled, text_tokens(tokenizer)), *special_tokens(tokenizer)]


def is_openai_table(tokens: Mapping[str, int], table: Sequence[str]) -> bool:
    """Whether token -> id says nothing else than `table`, and has all of its text."""
    ids = {token: i for i, token in enumerate(table)}
    text = table.index("<|endoftext|>")
    known = all(ids.get(OLD_NAMES.get(token, token)) == i for token, i in tokens.items())
    return known and all(token in tokens for token in table[:text] if token)
