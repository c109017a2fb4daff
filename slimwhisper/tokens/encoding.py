"""tiktoken's encoding of openai-whisper's vocabularies, for any text.

Import it only where a vocabulary is loaded: tiktoken is slow to import.
"""

from collections.abc import Collection, Set
from typing import Literal

import tiktoken


class Encoding(tiktoken.Encoding):
    """Takes the names of special tokens in texts, such as "<|en|>", as plain text: tiktoken refuses
    them, after it has compiled a pattern of all 1,608 for the first text.
    """

    @classmethod
    def of(cls, other: tiktoken.Encoding) -> "Encoding":
        """The same encoding; its tables are shared."""
        if isinstance(other, cls):
            return other
        encoding = cls.__new__(cls)
        vars(encoding).update(vars(other))
        return encoding

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | Set[str] = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = (),
    ) -> list[int]:
        """A text -> its tokens. ValueError if it holds a special token of `disallowed_special`."""
        return super().encode(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        )
