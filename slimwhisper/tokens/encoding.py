"""Whisper's languages, by all names that people and programs write, and its tokens: converts texts
to OpenAI's two vocabularies, read by tiktoken, and back.

The tables here and beside this file are openai-whisper's (MIT licence, see THIRD_PARTY.md).
`Tokenizer` has the interface of `whisper.tokenizer.Tokenizer`.
"""

import re
import string
from base64 import b64decode
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slimwhisper.types import TIMESTAMPS

if TYPE_CHECKING:
    import tiktoken


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for row in re.split(r"[|\n]", text.strip()):
        code, _, name = row.partition(" ")
        yield code, name


# Whisper's codes in the order of their tokens, with their names in English: openai-whisper's
LANGUAGES = dict(
    _pairs("""
en english|zh chinese|de german|es spanish|ru russian|ko korean|fr french|ja japanese
pt portuguese|tr turkish|pl polish|ca catalan|nl dutch|ar arabic|sv swedish|it italian
id indonesian|hi hindi|fi finnish|vi vietnamese|he hebrew|uk ukrainian|el greek|ms malay|cs czech
ro romanian|da danish|hu hungarian|ta tamil|no norwegian|th thai|ur urdu|hr croatian|bg bulgarian
lt lithuanian|la latin|mi maori|ml malayalam|cy welsh|sk slovak|te telugu|fa persian|lv latvian
bn bengali|sr serbian|az azerbaijani|sl slovenian|kn kannada|et estonian|mk macedonian|br breton
eu basque|is icelandic|hy armenian|ne nepali|mn mongolian|bs bosnian|kk kazakh|sq albanian
sw swahili|gl galician|mr marathi|pa punjabi|si sinhala|km khmer|sn shona|yo yoruba|so somali
af afrikaans|oc occitan|ka georgian|be belarusian|tg tajik|sd sindhi|gu gujarati|am amharic
yi yiddish|lo lao|uz uzbek|fo faroese|ht haitian creole|ps pashto|tk turkmen|nn nynorsk|mt maltese
sa sanskrit|lb luxembourgish|my myanmar|bo tibetan|tl tagalog|mg malagasy|as assamese|tt tatar
haw hawaiian|ln lingala|ha hausa|ba bashkir|jw javanese|su sundanese|yue cantonese
""")
)
_MORE = """
my burmese|ca valencian|nl flemish|ht haitian|lb letzeburgesch|ps pushto|pa panjabi|ro moldavian
ro moldovan|si sinhalese|es castilian|zh mandarin
"""
TO_LANGUAGE_CODE = {name: code for code, name in (*LANGUAGES.items(), *_pairs(_MORE))}

# Whisper's code; ISO 639's codes of three letters, bibliographic ones and the largest member of a
# group of languages too; codes that ISO has replaced; codes of countries; some languages' own names
OTHER_NAMES = """
en eng|zh zho chi cmn cn 中文|de deu ger deutsch gsw|es spa español espanol|ru rus русский
ko kor 한국어|fr fra fre français francais|ja jpn jp 日本語|pt por português portugues|tr tur
pl pol polski|ca cat|nl nld dut nederlands|ar ara arb arz ary apc acm aeb afb|sv swe svenska
it ita italiano|id ind in|hi hin|fi fin suomi|vi vie|he heb iw|uk ukr ua|el ell gre gr
ms msa may zsm|cs ces cze cz|ro ron rum mol mo|da dan dk dansk|hu hun|ta tam
no nor nob nb norsk bokmål|th tha|ur urd|hr hrv scr|bg bul|lt lit|la lat|mi mri mao|ml mal
cy cym wel|sk slk slo|te tel|fa fas per pes prs farsi|lv lav lvs|bn ben|sr srp scc|az aze azj|sl slv
kn kan|et est ekk|mk mkd mac|br bre|eu eus baq|is isl ice|hy hye arm|ne nep npi|mn mon khk|bs bos
kk kaz|sq sqi alb als|sw swa swh|gl glg|mr mar|pa pan|si sin|km khm|sn sna|yo yor|so som|af afr
oc oci|ka kat geo|be bel|tg tgk|sd snd|gu guj|am amh|yi yid ydd ji|lo lao|uz uzb uzn|fo fao|ht hat
ps pus pbt|tk tuk|nn nno|mt mlt|sa san|lb ltz|my mya bur|bo bod tib|tl tgl fil filipino|mg mlg plt
as asm|tt tat|ln lin|ha hau|ba bak|jw jav jv|su sun
"""
_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]+)*(?:[.@].*)?|(.+?) ?\(.*\)")  # en-US, English (US)


@cache
def _codes() -> dict[str, str]:
    """Every name -> Whisper's code."""
    others = {name: code for code, names in _pairs(OTHER_NAMES) for name in names.split()}
    return others | TO_LANGUAGE_CODE | {code: code for code in LANGUAGES}


def possible_codes(language: str) -> Iterator[str]:
    """What a code ("de"), token ("<|de|>"), English name ("German") or tag ("de-AT") may stand for,
    the most exact first, in lower case. A model's own code need not be one of Whisper's.
    """
    name = language.strip().lower().removeprefix("<|").removesuffix("|>")
    tag = _TAG.fullmatch(name)
    for part in (name, *(tag.groups("") if tag else ())):
        if part:
            yield part
            yield _codes().get(part, part)


def whispers_code(language: str) -> str | None:
    """Whisper's code for a language; None if it has none."""
    return next((code for code in possible_codes(language) if code in LANGUAGES), None)


def language_hint(language: str) -> str:
    """What to write instead of a language that nobody knows.

    Codes are not compared: nearly each is like those of several other languages.
    """
    names = [name for name in _codes() if min(len(name), len(language.strip())) > 3]
    near = get_close_matches(language.strip().lower(), names, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else "use a code such as 'en' or 'de'"


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
    name = "en" if language is None else language.lower()
    code = TO_LANGUAGE_CODE.get(name, name)
    if code not in LANGUAGES:
        raise ValueError(f"Unsupported language: {name}")
    if not multilingual:
        return Tokenizer(get_encoding("gpt2", num_languages), num_languages)
    encoding = get_encoding("multilingual", num_languages)
    return Tokenizer(encoding, num_languages, code, task or "transcribe")
