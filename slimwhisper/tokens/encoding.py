"""tiktoken's encoding of openai-whisper's vocabularies, whose first text needs no pattern.

Import it only where a vocabulary is loaded: tiktoken takes a moment to import.
"""

from collections.abc import Collection, Set
from typing import Literal

import tiktoken


class Encoding(tiktoken.Encoding):
    """Refuses special tokens in texts as tiktoken does, but only looks for them where one can be.

    tiktoken compiles a pattern of all 1,608 for the first text. All of them begin with "<|".
    """

    @classmethod
    def of(cls, other: tiktoken.Encoding) -> "Encoding":
        """The same encoding, with its tables, which are not copied."""
        if isinstance(other, cls):
            return other
        assert all(token.startswith("<|") for token in other.special_tokens_set)
        encoding = cls.__new__(cls)
        vars(encoding).update(vars(other))
        return encoding

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | Set[str] = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """A text -> its tokens. ValueError if it holds a special token that is not allowed."""
        if "<|" not in text and disallowed_special == "all":
            disallowed_special = ()
        return super().encode(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
