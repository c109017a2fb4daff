"""Names of languages, as people and programs write them, and Whisper's code for each."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache


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
TO_LANGUAGE_CODE = {
    name: code for pairs in (LANGUAGES.items(), _pairs(_MORE)) for code, name in pairs
}

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
