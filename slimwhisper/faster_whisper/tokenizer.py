"""faster-whisper's tokenizer, over ours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slimwhisper.tokens.languages import LANGUAGES
from slimwhisper.tokens.texts import encode_text
from slimwhisper.tokens.vocabulary import Vocabulary, language_code

if TYPE_CHECKING:
    from slimwhisper.tokens.encoding import Tokenizer as WhisperTokenizer

_LANGUAGE_CODES = tuple(LANGUAGES)


class Encoded(NamedTuple):
    """A text's tokens."""

    ids: list[int]


class HubTokenizer:
    """The calls of `tokenizers.Tokenizer` that programs make of `WhisperModel.hf_tokenizer`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._plain = vocabulary.tokenizer()

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Special tokens are never added."""
        return Encoded(encode_text(self._plain, text))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Without special tokens, and without timestamps."""
        return self._plain.decode([token for token in ids if self.vocabulary.is_text(token)])

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of each."""
        return [self.decode(ids) for ids in sequences]

    def token_to_id(self, token: str) -> int | None:
        """The id of a special token, or of a text that is one token; else None."""
        special = self._plain.special_tokens.get(token)
        if special is not None:
            return special
        ids = encode_text(self._plain, token)
        return ids[0] if len(ids) == 1 else None


class Tokenizer:
    """Texts as tokens and back, for a language and a task. Raises OptionError for a language that
    the model does not know.
    """

    def __init__(
        self,
        tokenizer: HubTokenizer,
        multilingual: bool,
        task: str | None = None,
        language: str | None = None,
    ) -> None:
        vocabulary = tokenizer.vocabulary
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self.task_name = task if multilingual else None
        self.language_code = language_code(language or "en", vocabulary) if multilingual else "en"
        code = self.language_code if multilingual else None
        self._inner: WhisperTokenizer = vocabulary.tokenizer(code, task or "transcribe")
        self.timestamp_begin = vocabulary.timestamps.start
        self.eot, self.sot = vocabulary.eot, vocabulary.sot
        self.sot_prev, self.no_speech = vocabulary.sot_prev, vocabulary.no_speech
        self.no_timestamps = vocabulary.no_timestamps

    @property
    def task(self) -> int | None:
        """The token of the task; None for an English-only model."""
        return None if self.task_name is None else getattr(self._inner, self.task_name)

    @property
    def language(self) -> int | None:
        """The token of the language; None for an English-only model."""
        codes = self._vocabulary.languages
        return next((t for t, code in codes.items() if code == self.language_code), None)

    def __getattr__(self, name: str) -> Any:
        """All else is as in openai-whisper: tokens of tasks, and how texts are split."""
        return getattr(self._inner, name)

    @property
    def sot_sequence(self) -> list[int]:
        return list(self._inner.sot_sequence)

    def encode(self, text: str) -> list[int]:
        return encode_text(self._inner, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; other tokens are left out."""
        return self.tokenizer.decode(tokens)
