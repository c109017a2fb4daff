"""The tokenizer of `whisper.tokenizer`, for scripts that were written for it."""

from slimwhisper.tokens.encoding import (
    LANGUAGES,
    TO_LANGUAGE_CODE,
    Tokenizer,
    get_encoding,
    get_tokenizer,
)

__all__ = ["LANGUAGES", "TO_LANGUAGE_CODE", "Tokenizer", "get_encoding", "get_tokenizer"]
