"""Converts texts to Whisper's tokens and back: OpenAI's two vocabularies, read by tiktoken.

The tables beside this file are openai-whisper's (MIT licence, see THIRD_PARTY.md). `Tokenizer` has
the interface of `whisper.tokenizer.Tokenizer`.
"""

import string
from base64 import b64decode
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slimwhisper.tokens.languages import LANGUAGES, TO_LANGUAGE_CODE
from slimwhisper.types import TIMESTAMPS

if TYPE_CHECKING:
    import tiktoken

# of GPT-2: the pieces of a text that are encoded one by one
PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")  # languages without spaces between words
# not spoken: what labels of sounds and speakers are written with
SYMBOLS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *"<< >> <<< >>> -- --- -( -[ (' (\" (( ))".split())
SYMBOLS += (*"((( ))) [[ ]] {{ }} ♪♪ ♪♪♪".split(),)
NOTES = "♩♪♫♬♭♮♯"  # of which the first of several tokens is enough: their first bytes are the same
SPECIAL = {  # attributes of a tokenizer
    "transcribe": "<|transcribe|>",
    "translate": "<|translate|>",
    "sot": "<|startoftranscript|>",
    "sot_lm": "<|startoflm|>",
    "sot_prev": "<|startofprev|>",
    "no_speech": "<|nospeech|>",
    "no_timestamps": "<|notimestamps|>",
}


@cache
def get_encoding(name: str = "gpt2", num_languages: int = 99) -> "tiktoken.Encoding":
    """Load one of OpenAI's encodings, with the special tokens after it.

    This is `whisper.tokenizer.get_encoding`.

    Args:
        name: "gpt2", which is for English, or "multilingual".
        num_languages: How many languages have a token.

    Returns:
        The encoding.
    """
    import tiktoken  # it takes a moment

    words = files(__package__).joinpath(f"{name}.tiktoken").read_bytes().split()
    ranks = {b64decode(t): int(rank) for t, rank in zip(words[::2], words[1::2], strict=True)}
    special = ["endoftext", "startoftranscript", *list(LANGUAGES)[:num_languages], "translate"]
    special += ["transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special += [f"{i / 50:.2f}" for i in range(TIMESTAMPS)]
    return tiktoken.Encoding(
        name=f"{name}.tiktoken",
        explicit_n_vocab=len(ranks) + len(special),
        pat_str=PIECES,
        mergeable_ranks=ranks,
        special_tokens={f"<|{token}|>": len(ranks) + i for i, token in enumerate(special)},
    )


@cache  # languages and tasks share it
def _special_tokens(encoding: "tiktoken.Encoding") -> dict[str, int]:
    """By name, in order."""
    names = encoding.special_tokens_set
    return {n: t for t, n in sorted((encoding.encode_single_token(n), n) for n in names)}


class Tokenizer:
    """Converts texts to tokens and back, for one language and task.

    This is `whisper.tokenizer.Tokenizer`.

    Attributes:
        transcribe: The token <|transcribe|>.
        translate: The token <|translate|>.
        sot: The token <|startoftranscript|>.
        sot_lm: The token <|startoflm|>.
        sot_prev: The token <|startofprev|>.
        no_speech: The token <|nospeech|>.
        no_timestamps: The token <|notimestamps|>.
        encoding: The encoding of tiktoken.
        num_languages: The number of languages.
        language: The code of the language, or None.
        task: "transcribe", "translate" or None.
        special_tokens: The special tokens by their names, in order.
        eot: The token <|endoftext|>.
        timestamp_begin: The first timestamp, <|0.00|>.
        all_language_tokens: The tokens of all languages, in order.
        all_language_codes: The codes of all languages, in the same order.
        sot_sequence: The prompt of a text: <|startoftranscript|>, the language and the task.
    """

    transcribe: int
    translate: int
    sot: int
    sot_lm: int
    sot_prev: int
    no_speech: int
    no_timestamps: int

    def __init__(
        self,
        encoding: Any,
        num_languages: int,
        language: str | None = None,
        task: str | None = None,
    ) -> None:
        """Make a tokenizer. `get_tokenizer` does it by the names of things.

        Args:
            encoding: The encoding, as `get_encoding` returns it.
            num_languages: How many languages have a token.
            language: The code of the language. None means that it is not in the prompt.
            task: "transcribe" or "translate". None means that it is not in the prompt.
        """
        self.encoding: Any = encoding
        self.num_languages, self.language, self.task = num_languages, language, task
        self.special_tokens = dict(_special_tokens(encoding))
        for name, token in SPECIAL.items():
            setattr(self, name, self.special_tokens[token])
        self.eot: int = encoding.eot_token
        self.timestamp_begin = self.special_tokens["<|0.00|>"]
        codes = list(LANGUAGES)[:num_languages]
        self.all_language_tokens = tuple(range(self.sot + 1, self.sot + 1 + num_languages))
        self.all_language_codes = tuple(codes)
        sequence = [self.sot]
        if language is not None:
            sequence.append(self.sot + 1 + codes.index(language))
        if task is not None:
            sequence.append(self.transcribe if task == "transcribe" else self.translate)
        self.sot_sequence = tuple(sequence)

    def is_text(self, token: int) -> bool:
        """Return whether a token is text, not special.

        Args:
            token: The token.

        Returns:
            Whether it is text.
        """
        return token < self.eot

    def encode(self, text: str, **options: Any) -> list[int]:
        """Encode a text.

        Args:
            text: The text.
            **options: The other arguments of tiktoken's method.

        Returns:
            The tokens.

        Raises:
            ValueError: When the text has a special token that is not allowed.
        """
        if "<|" not in text:  # no search for special tokens, which compiles a pattern of all 1,608
            options.setdefault("disallowed_special", ())
        return self.encoding.encode(text, **options)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Decode tokens. Timestamps are left out.

        Args:
            token_ids: The tokens.
            **options: The other arguments of tiktoken's method.

        Returns:
            The text.
        """
        texts = [token for token in token_ids if token < self.timestamp_begin]
        return self.encoding.decode(texts, **options)

    def decode_with_timestamps(self, token_ids: Sequence[int], **options: Any) -> str:
        """Decode tokens, with timestamps such as <|1.08|>.

        Args:
            token_ids: The tokens.
            **options: The other arguments of tiktoken's method.

        Returns:
            The text.
        """
        return self.encoding.decode(list(token_ids), **options)

    @cached_property
    def language_token(self) -> int:
        """The token of the tokenizer's language.

        Raises:
            ValueError: When the tokenizer has no language.
        """
        if self.language is None:
            raise ValueError("this tokenizer has no language")
        return self.to_language_token(self.language)

    def to_language_token(self, language: str) -> int:
        """Return the token of a language.

        Args:
            language: The code of the language.

        Returns:
            The token.

        Raises:
            KeyError: When there is no such language.
        """
        return self.special_tokens[f"<|{language}|>"]

    @cached_property
    def sot_sequence_including_notimestamps(self) -> tuple[int, ...]:
        """The prompt of a text without timestamps."""
        last = () if self.no_timestamps is None else (self.no_timestamps,)
        return (*self.sot_sequence, *last)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """The tokens that begin what nobody says.

        These are labels of sounds and speakers, notes and brackets, and a hyphen or an apostrophe
        at the beginning of a word.
        """
        tokens = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in (*SYMBOLS, *NOTES):
            for written in (self.encode(symbol), self.encode(f" {symbol}")):
                if len(written) == 1 or symbol in NOTES:
                    tokens.add(written[0])
        return tuple(sorted(tokens))

    def split_to_word_tokens(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Split tokens into words. In a language without spaces, each letter is a word.

        Args:
            tokens: The tokens.

        Returns:
            The words.
            The tokens of each word.
        """
        unspaced = self.language in UNSPACED
        return (self.split_tokens_on_unicode if unspaced else self.split_tokens_on_spaces)(tokens)

    def split_tokens_on_unicode(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Split tokens into the shortest pieces that are whole letters.

        Args:
            tokens: The tokens.

        Returns:
            The pieces.
            The tokens of each piece.
        """
        whole, at = self.decode_with_timestamps(tokens), 0
        pieces: list[str] = []
        groups: list[list[int]] = []
        begun: list[int] = []
        for token in tokens:
            begun.append(token)
            piece = self.decode_with_timestamps(begun)
            broken = piece.find("\ufffd")  # half a letter, unless the text itself has one there
            if broken < 0 or whole[at + broken] == "\ufffd":
                pieces.append(piece)
                groups.append(begun)
                at, begun = at + len(piece), []
        return pieces, groups

    def split_tokens_on_spaces(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Split tokens into words. A space, punctuation or a special token begins a new word.

        Args:
            tokens: The tokens.

        Returns:
            The words.
            The tokens of each word.
        """
        words: list[str] = []
        groups: list[list[int]] = []
        for piece, ids in zip(*self.split_tokens_on_unicode(tokens), strict=True):
            marks = piece.startswith(" ") or piece.strip() in string.punctuation
            if not words or marks or not self.is_text(ids[0]):
                words.append(piece)
                groups.append(list(ids))
            else:
                words[-1] += piece
                groups[-1] += ids
        return words, groups


@cache
def get_tokenizer(
    multilingual: bool,
    *,
    num_languages: int = 99,
    language: str | None = None,
    task: str | None = None,
) -> Tokenizer:
    """Make a tokenizer. This is `whisper.tokenizer.get_tokenizer`.

    Args:
        multilingual: Whether the vocabulary is the multilingual one.
        num_languages: How many languages have a token.
        language: The code or the English name of the language. None means English.
        task: "transcribe" or "translate". None means "transcribe".

    Returns:
        The tokenizer. For an English-only vocabulary it has neither a language nor a task.

    Raises:
        ValueError: When the language is unknown.
    """
    code = None if language is None else language.lower()
    if code is not None and code not in LANGUAGES:
        if code not in TO_LANGUAGE_CODE:
            raise ValueError(f"Unsupported language: {code}")
        code = TO_LANGUAGE_CODE[code]
    if not multilingual:
        return Tokenizer(get_encoding("gpt2", num_languages), num_languages)
    encoding = get_encoding("multilingual", num_languages)
    return Tokenizer(encoding, num_languages, code or "en", task or "transcribe")
