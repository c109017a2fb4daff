"""The token ids that decoding needs: special tokens by name, timestamps and text as ranges; and the
names of languages, as people and programs write them, with Whisper's code for each.

`get_vocabulary` returns those of openai-whisper's tables; `slimwhisper.checkpoint.vocabulary` reads
those of a model's files.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from slimwhisper.errors import OptionError
from slimwhisper.option_group import TASKS
from slimwhisper.types import Dims, SpecialTokens

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

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
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    rows = [row.split() for row in re.split(r"[|\n]", OTHER_NAMES.strip())]
    others = {name: code for code, *names in rows for name in names}
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
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES

    return next((code for code in possible_codes(language) if code in LANGUAGES), None)


def language_hint(language: str) -> str:
    """What to write instead of a language that nobody knows.

    Codes are not compared: nearly each is like those of several other languages.
    """
    names = [name for name in _codes() if min(len(name), len(language.strip())) > 3]
    near = get_close_matches(language.strip().lower(), names, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else "use a code such as 'en' or 'de'"


SIZES = (51_864, 51_865, 51_866)  # openai-whisper's: English, multilingual, large-v3's
TIMESTAMPS = 1501  # <|0.00|> ... <|30.00|>


@dataclass(frozen=True, eq=False)
class Vocabulary(SpecialTokens):
    """The tokens of prompts and texts as well, for all languages and tasks."""

    sot: int  # <|startoftranscript|>
    make_tokenizer: Callable[[str | None, str], "Tokenizer"]  # for a language's code and a task
    tasks: tuple[str, ...] = ()  # of `TASKS`
    sot_prev: int | None = None  # <|startofprev|>, before the text of earlier windows
    suppressed: tuple[int, ...] | None = None  # never sampled; None: as in `whisper`
    suppressed_first: tuple[int, ...] | None = None  # never sampled first; None: as in `whisper`
    is_whispers: bool = False  # the tokens are those of openai-whisper's table

    def tokenizer(self, language: str | None = None, task: str = "transcribe") -> "Tokenizer":
        """Texts as tokens and back, with the interface of `whisper.tokenizer.Tokenizer`."""
        return self.make_tokenizer(language, task)


def ranges_of(ids: Iterable[int]) -> tuple[range, ...]:
    """Ids as the fewest ranges, in order."""
    ranges: list[range] = []
    for i in sorted(set(ids)):
        if ranges and ranges[-1].stop == i:
            ranges[-1] = range(ranges[-1].start, i + 1)
        else:
            ranges.append(range(i, i + 1))
    return tuple(ranges)


def text_only(tokens: Iterable[int], tokenizer: "Tokenizer") -> list[int]:
    """The tokens of text: in openai-whisper's tokenizers those below <|endoftext|>."""
    texts: tuple[range, ...] = getattr(tokenizer, "texts", None) or (range(tokenizer.eot),)
    return [token for token in tokens if any(token in ids for ids in texts)]


def get_tokenizer(dims: Dims, language: str | None = None, task: str = "transcribe") -> "Tokenizer":
    """openai-whisper's tokenizer for these dimensions; cached there."""
    from slimwhisper.tokens.encoding import Encoding
    from slimwhisper.tokens.whisper_package import tokenizer as whisper_tokenizer

    tokenizer = whisper_tokenizer.get_tokenizer(
        dims.is_multilingual,
        num_languages=dims.num_languages,
        language=language or ("en" if dims.is_multilingual else None),
        task=task,
    )
    tokenizer.encoding = Encoding.of(tokenizer.encoding)
    return tokenizer


@lru_cache(maxsize=16)
def get_vocabulary(dims: Dims) -> Vocabulary:
    """openai-whisper's vocabulary for these dimensions, of one of the `SIZES`."""
    t = get_tokenizer(dims)
    codes = zip(t.all_language_tokens, t.all_language_codes, strict=True)
    return Vocabulary(
        size=dims.n_vocab,
        eot=t.eot,
        sot=t.sot,
        no_speech=t.no_speech,
        no_timestamps=t.no_timestamps,
        timestamps=range(t.timestamp_begin, t.timestamp_begin + TIMESTAMPS),
        languages=dict(codes) if dims.is_multilingual else {},
        texts=(range(t.eot),),
        make_tokenizer=partial(get_tokenizer, dims),
        tasks=TASKS if dims.is_multilingual else TASKS[:1],
        sot_prev=t.sot_prev,
        is_whispers=True,
    )


def language_code(language: str, vocabulary: Vocabulary, any_model: bool = False) -> str:
    """A code ("de", "deu"), token ("<|de|>"), English name ("German") or tag ("de-AT") -> the code.

    Raises `OptionError` for a language that the model, or any model of Whisper's, does not know.
    """
    own = {code.lower(): code for code in vocabulary.languages.values()} or {"en": "en"}
    for name in possible_codes(language):
        if name in own:
            return own[name]
    code = whispers_code(language)
    if code is None:
        hint = language_hint(language)
        raise OptionError(f"language {language!r} is not a language of Whisper; {hint}")
    if any_model:
        return code
    if not vocabulary.languages:
        reason = "this model is English-only; choose a multilingual model, or 'en'"
    else:
        models = "large-v3, or another model" if code == "yue" else "a model"
        reason = f"{code!r} is not in this model; choose {models} that has it"
    raise OptionError(f"language {language!r}: {reason}")
