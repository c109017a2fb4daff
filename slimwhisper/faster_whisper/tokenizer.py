"""The tokenizer of faster-whisper."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from slimwhisper.tokens.encoding import LANGUAGES
from slimwhisper.tokens.options import encode_text
from slimwhisper.tokens.vocabulary import Tokenizer as WhisperTokenizer
from slimwhisper.tokens.vocabulary import Vocabulary, language_code

_LANGUAGE_CODES = tuple(LANGUAGES)


class Encoded(NamedTuple):
    """The tokens of a text.

    Attributes:
        ids: The tokens.
    """

    ids: list[int]


class HubTokenizer:
    """The calls of `tokenizers.Tokenizer` that programs make of `WhisperModel.hf_tokenizer`.

    Attributes:
        vocabulary: The model's vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Make the calls for a vocabulary.

        Args:
            vocabulary: The model's vocabulary.
        """
        self.vocabulary = vocabulary
        self._plain = vocabulary.tokenizer()

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Encode a text.

        Args:
            text: The text.
            add_special_tokens: This has no effect: special tokens are never added.

        Returns:
            The tokens.
        """
        return Encoded(encode_text(self._plain, text))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode tokens. Special tokens and timestamps are left out.

        Args:
            ids: The tokens.
            skip_special_tokens: This has no effect.

        Returns:
            The text.
        """
        return self._plain.decode([token for token in ids if self.vocabulary.is_text(token)])

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decode the tokens of several texts.

        Args:
            sequences: The tokens of each text.

        Returns:
            The texts.
        """
        return [self.decode(ids) for ids in sequences]

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token, or of a text that is one token.

        Args:
            token: The token, or the text.

        Returns:
            The id, or None if there is no such token.
        """
        special = self._plain.special_tokens.get(token)
        if special is not None:
            return special
        ids = encode_text(self._plain, token)
        return ids[0] if len(ids) == 1 else None


class Tokenizer:
    """Converts texts to tokens and back, for a language and a task.

    What is not listed here is that of openai-whisper's tokenizer.

    Attributes:
        tokenizer: The tokenizer of the model.
        task_name: The name of the task. None means an English-only model.
        language_code: The code of the language.
        timestamp_begin: The first timestamp, <|0.00|>.
        eot: The token <|endoftext|>.
        sot: The token <|startoftranscript|>.
        sot_prev: The token <|startofprev|>.
        no_speech: The token <|nospeech|>.
        no_timestamps: The token <|notimestamps|>.
    """

    def __init__(
        self,
        tokenizer: HubTokenizer,
        multilingual: bool,
        task: str | None = None,
        language: str | None = None,
    ) -> None:
        """Make a tokenizer.

        Args:
            tokenizer: The tokenizer of the model, `WhisperModel.hf_tokenizer`.
            multilingual: Whether the model knows other languages than English.
            task: "transcribe" or "translate".
            language: The code or the name of the language. None means English.

        Raises:
            OptionError: When the model does not know the language.
        """
        vocabulary = tokenizer.vocabulary
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self.task_name = task if multilingual else None
        self.language_code = language_code(language or "en", vocabulary) if multilingual else "en"
        code = self.language_code if multilingual else None
        self._inner: WhisperTokenizer = vocabulary.tokenizer(code, task or "transcribe")

    @property
    def task(self) -> int | None:
        """The token of the task. None means an English-only model."""
        return None if self.task_name is None else getattr(self._inner, self.task_name)

    @property
    def language(self) -> int | None:
        """The token of the language. None means an English-only model."""
        codes = self._vocabulary.languages
        return next((t for t, code in codes.items() if code == self.language_code), None)

    def __getattr__(self, name: str) -> Any:
        """Return what openai-whisper's tokenizer has: special tokens, and how texts are split."""
        return getattr(self._inner, name)

    @property
    def sot_sequence(self) -> list[int]:
        """The prompt of a text: <|startoftranscript|>, the language and the task."""
        return list(self._inner.sot_sequence)

    def encode(self, text: str) -> list[int]:
        """Encode a text.

        Args:
            text: The text.

        Returns:
            The tokens.
        """
        return encode_text(self._inner, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens. Special tokens and timestamps are left out.

        Args:
            tokens: The tokens.

        Returns:
            The text.
        """
        return self.tokenizer.decode(tokens)
