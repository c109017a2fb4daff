"""The tokenizer of a model's folder: `tokenizers` with the interface of `whisper`'s Tokenizer.

Import it only where such a model is loaded: `tokenizers` is slow to import.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from slimwhisper.errors import CheckpointError
from slimwhisper.tokens.encoding import SPECIAL, Tokenizer

_SECONDS = 0.02  # from one timestamp token to the next


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Turns a panic of `tokenizers`, which no `except Exception` sees, into a CheckpointError: its
    regular expressions give up after many steps, and patterns come from the model's files.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = f"{error}".splitlines()[0][:200]
        remedy = "correct the patterns in its tokenizer.json"
        raise CheckpointError(f"the model's tokenizer fails: {reason}; {remedy}") from None


class FolderEncoding:
    """The calls of `tiktoken.Encoding` that `whisper`'s Tokenizer makes."""

    def __init__(self, fast: FastTokenizer, eot: int, size: int) -> None:
        """size: ids from 0 up; some may have no token."""
        fast.no_truncation()
        fast.no_padding()
        self.fast, self.eot_token, self.n_vocab = fast, eot, size

    def encode(self, text: str, **_: Any) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # as tiktoken
        with _panics_as_errors():
            return list(self.fast.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """The text of tokens; ids that have none are left out."""
        with _panics_as_errors():
            return str(self.fast.decode(list(tokens), skip_special_tokens=False))


class FolderTokenizer(Tokenizer):
    """Texts as tokens and back. Tokens that the vocabulary lacks are None, and not in prompts."""

    def __init__(
        self,
        encoding: FolderEncoding,
        special_tokens: Mapping[str, int],
        texts: tuple[range, ...],
        timestamps: range,
        languages: Mapping[int, str],
        language: str | None,
        task: str | None,
    ) -> None:
        """special_tokens: by `whisper`'s names, such as "<|transcribe|>", timestamps aside.
        texts: the ids of text. languages: token -> code. language: a code; None: not in the prompt.
        """
        self.encoding, self.special_tokens = encoding, dict(special_tokens)
        self.texts, self.timestamps, self.languages = texts, timestamps, dict(languages)
        self.num_languages, self.language, self.task = len(languages), language, task
        names = [f"<|{name}|>" for name in (language, task) if name is not None]
        prompt = [self.special_tokens[n] for n in names if n in self.special_tokens]
        self.sot_sequence = (self.special_tokens["<|startoftranscript|>"], *prompt)
        self.timestamp_begin = timestamps.start
        self.all_language_tokens = tuple(self.languages)
        self.all_language_codes = tuple(self.languages.values())
        self.eot = encoding.eot_token
        for name, token in SPECIAL.items():
            setattr(self, name, self.special_tokens.get(token))

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        """The text, without special tokens and timestamps."""
        return self.encoding.decode([t for t in token_ids if self.is_text(t)])

    def decode_with_timestamps(self, token_ids: Sequence[int], **_: Any) -> str:
        """The text, with the names of other tokens."""
        parts: list[str] = []
        for is_text, group in groupby(token_ids, key=self.is_text):
            tokens = list(group)
            parts += [self.encoding.decode(tokens)] if is_text else map(self._name, tokens)
        return "".join(parts)

    @cached_property
    def sot_sequence_including_notimestamps(self) -> tuple[int, ...]:
        last = () if self.no_timestamps is None else (self.no_timestamps,)
        return (*self.sot_sequence, *last)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """As in `whisper`; none if the vocabulary has no "-"."""
        if not (self.encode(" -") and self.encode(" '")):
            return ()
        return super().non_speech_tokens

    def is_text(self, token: int) -> bool:
        """Whether a token is text, not special."""
        return any(token in ids for ids in self.texts)

    def _name(self, token: int) -> str:
        if token in self.timestamps:
            return f"<|{(token - self.timestamps.start) * _SECONDS:.2f}|>"
        return self.encoding.fast.id_to_token(token) or ""


def byte_level_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[str, bool]
) -> FastTokenizer:
    """GPT-2's pattern and letters.

    Arguments:
        vocabulary: token, spelled as by `openai.spelled` -> id.
        merges: pairs of tokens, the first to merge first.
        added: tokens that are matched whole in texts, in the order of their ids -> whether they are
            special, not text. Those that are not in the vocabulary get the ids after it.
    Raises Exception, as `tokenizers` does, for merges of tokens that are not in the vocabulary.
    """
    tokenizer = FastTokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(name, special=special, normalized=False) for name, special in added.items()]
    )
    return tokenizer
