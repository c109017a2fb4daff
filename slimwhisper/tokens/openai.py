"""OpenAI's token tables by the size of the vocabulary, for comparing and writing other formats."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from slimwhisper.tokens.vocabulary import SIZES, get_tokenizer
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

OLD_NAMES = {"<|nocaptions|>": "<|nospeech|>"}  # in files of 2022


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


def full_table(tokenizer: "Tokenizer") -> list[str]:
    """Every token as Hugging Face and CTranslate2 spell it, by id."""
    return [*map(spelled, text_tokens(tokenizer)), *special_tokens(tokenizer)]


def is_openai_table(tokens: Mapping[str, int], table: Sequence[str]) -> bool:
    """Whether token -> id agrees with `table`, and has all of its text tokens."""
    ids = {token: i for i, token in enumerate(table)}
    text = table[: table.index("<|endoftext|>")]
    agrees = all(ids.get(OLD_NAMES.get(token, token)) == i for token, i in tokens.items())
    return agrees and all(token in tokens for token in text if token)
