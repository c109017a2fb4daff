"""Texts as Whisper's tokens and back: OpenAI's two vocabularies, read by tiktoken.

The tables beside this file are openai-whisper's (MIT licence: THIRD_PARTY.md); `Tokenizer` has the
interface of its `whisper.tokenizer.Tokenizer`. Import this only where a vocabulary is loaded:
tiktoken is slow to import.
"""

import string
from base64 import b64decode
from collections.abc import Collection, Sequence, Set
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

import tiktoken

from slimwhisper.tokens.languages import LANGUAGES, TO_LANGUAGE_CODE
from slimwhisper.types import TIMESTAMPS

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


class Encoding(tiktoken.Encoding):
    """Refuses special tokens in texts as tiktoken does, but searches only texts with "<|", with
    which all of them begin: tiktoken compiles a pattern of all 1,608 for the first search.
    """

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


@cache
def get_encoding(name: str = "gpt2", num_languages: int = 99) -> Encoding:
    """An encoding by one of OpenAI's tables, "gpt2" (English) or "multilingual", and the special
    tokens after it.
    """
    words = files(__package__).joinpath(f"{name}.tiktoken").read_bytes().split()
    ranks = {b64decode(t): int(rank) for t, rank in zip(words[::2], words[1::2], strict=True)}
    special = ["endoftext", "startoftranscript", *list(LANGUAGES)[:num_languages], "translate"]
    special += ["transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special += [f"{i / 50:.2f}" for i in range(TIMESTAMPS)]
    return Encoding(
        name=f"{name}.tiktoken",
        explicit_n_vocab=len(ranks) + len(special),
        pat_str=PIECES,
        mergeable_ranks=ranks,
        special_tokens={f"<|{token}|>": len(ranks) + i for i, token in enumerate(special)},
    )


@cache  # languages and tasks share it
def _special_tokens(encoding: tiktoken.Encoding) -> dict[str, int]:
    """By name, in order."""
    names = encoding.special_tokens_set
    return {n: t for t, n in sorted((encoding.encode_single_token(n), n) for n in names)}


class Tokenizer:
    """Texts as tokens and back, for one language and task; special tokens by name."""

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
        """encoding: as of `get_encoding`. language: a code; None: not in the prompt. task: None:
        likewise.
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
        """Whether a token is text, not special."""
        return token < self.eot

    def encode(self, text: str, **options: Any) -> list[int]:
        """options: as of tiktoken."""
        return self.encoding.encode(text, **options)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """The text, without timestamps. options: as of tiktoken."""
        texts = [token for token in token_ids if token < self.timestamp_begin]
        return self.encoding.decode(texts, **options)

    def decode_with_timestamps(self, token_ids: Sequence[int], **options: Any) -> str:
        """The text, with timestamps such as <|1.08|>. options: as of tiktoken."""
        return self.encoding.decode(list(token_ids), **options)

    @cached_property
    def language_token(self) -> int:
        """The token of the tokenizer's language. Raises ValueError if it has none."""
        if self.language is None:
            raise ValueError("this tokenizer has no language")
        return self.to_language_token(self.language)

    def to_language_token(self, language: str) -> int:
        """A language's code -> its token. Raises KeyError."""
        return self.special_tokens[f"<|{language}|>"]

    @cached_property
    def sot_sequence_including_notimestamps(self) -> tuple[int, ...]:
        """The prompt of a text without timestamps."""
        return (*self.sot_sequence, self.no_timestamps)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Tokens that begin what nobody says: labels of sounds and speakers, notes, brackets; and a
        hyphen or an apostrophe at the beginning of a word.
        """
        tokens = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in (*SYMBOLS, *NOTES):
            for written in (self.encode(symbol), self.encode(f" {symbol}")):
                if len(written) == 1 or symbol in NOTES:
                    tokens.add(written[0])
        return tuple(sorted(tokens))

    def split_to_word_tokens(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Words and the tokens of each; of a language without spaces, its letters."""
        unspaced = self.language in UNSPACED
        return (self.split_tokens_on_unicode if unspaced else self.split_tokens_on_spaces)(tokens)

    def split_tokens_on_unicode(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The shortest pieces that are whole letters, and the tokens of each."""
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
        """Words and the tokens of each: a space, punctuation or a special token begins one."""
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
    """A tokenizer as of `whisper.tokenizer.get_tokenizer`: English if nothing else is said. Raises
    ValueError for an unknown language.
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
