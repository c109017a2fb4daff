"""Users' texts as tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slimwhisper.errors import OptionError
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

MOST_CHARACTERS = 1_000_000  # a second's work, for the few at the end that count


def check_length(key: str, text: str | Sequence[int] | None) -> None:
    """Raise OptionError for a text that is too long. key: of the option."""
    if (length := len(text or ())) > MOST_CHARACTERS:
        what = f"{key} has {length:,} characters"
        raise OptionError(f"{what}; give at most {MOST_CHARACTERS:,}")


def encode_text(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The tokens of a user's text, in which "<|en|>" is text as well."""
    return list(tokenizer.encode(text, disallowed_special=()))


def prompt_tokens(tokenizer: "Tokenizer", text: str | Sequence[int] | None) -> list[int]:
    """The tokens of a text that stands before a window's, or those that are given."""
    if isinstance(text, str):
        return encode_text(tokenizer, " " + text.strip()) if text else []
    return list(text or ())


def prefix_tokens(
    tokenizer: "Tokenizer", dims: Dims, prefix: str | Sequence[int] | None, sample_len: int | None
) -> list[int]:
    """The tokens that every window's text begins with. Raises OptionError if they are too many.

    prefix: the text, or its tokens. sample_len: the most tokens of a window's text; None: half of
    what the model has positions for.
    """
    half = dims.n_text_ctx // 2
    tokens = prompt_tokens(tokenizer, prefix)
    # all of them if that is 0, as in `whisper.decode`
    tokens = tokens[sample_len - half if sample_len else 0 :]
    most = dims.n_text_ctx - half - 8
    if len(tokens) > most:
        what = f"prefix: {len(tokens)} tokens leave no room for the text; give at most {most}"
        raise OptionError(what)
    return tokens
