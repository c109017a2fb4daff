"""The token ids that decoding needs: special tokens by name, timestamps and text as ranges; and
OpenAI's token tables by the size of the vocabulary, for comparing and writing other formats.

`get_vocabulary` returns those of openai-whisper's tables; `slimwhisper.formats.folders` reads
those of a model's files.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from slimwhisper.errors import OptionError
from slimwhisper.option_group import TASKS
from slimwhisper.tokens import encoding
from slimwhisper.tokens.encoding import Tokenizer as Tokenizer
from slimwhisper.tokens.encoding import language_hint, possible_codes, whispers_code
from slimwhisper.types import Dims, SpecialTokens

SIZES = (51_864, 51_865, 51_866)  # openai-whisper's: English, multilingual, large-v3's


@dataclass(frozen=True, eq=False)
class Vocabulary(SpecialTokens):
    """The tokens of prompts and texts as well, for all languages and tasks."""

    sot: int  # <|startoftranscript|>
    make_tokenizer: Callable[[str | None, str], Tokenizer]  # for a language's code and a task
    tasks: tuple[str, ...] = ()  # of `TASKS`
    sot_prev: int | None = None  # <|startofprev|>, before the text of earlier windows
    suppressed: tuple[int, ...] | None = None  # never sampled; None: as in `whisper`
    suppressed_first: tuple[int, ...] | None = None  # never sampled first; None: as in `whisper`
    is_whispers: bool = False  # the tokens are those of openai-whisper's table

    def tokenizer(self, language: str | None = None, task: str = "transcribe") -> Tokenizer:
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


def text_only(tokens: Iterable[int], tokenizer: Tokenizer) -> list[int]:
    """The tokens of text: in openai-whisper's tokenizers those below <|endoftext|>."""
    texts: tuple[range, ...] = getattr(tokenizer, "texts", None) or (range(tokenizer.eot),)
    return [token for token in tokens if any(token in ids for ids in texts)]


def get_tokenizer(dims: Dims, language: str | None = None, task: str = "transcribe") -> Tokenizer:
    """openai-whisper's tokenizer for these dimensions; cached there."""
    return encoding.get_tokenizer(
        dims.is_multilingual, num_languages=dims.num_languages, language=language, task=task
    )


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
        timestamps=range(t.timestamp_begin, dims.n_vocab),
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


# names that files of 2022 have, or other programs give
OLD_NAMES = {"<|nocaptions|>": "<|nospeech|>", "<|iw|>": "<|he|>", "<|jv|>": "<|jw|>"}
USED = ("startoftranscript", "translate", "transcribe", "startofprev", "nospeech", "notimestamps")


def openai_tokenizer(dims: Dims) -> Tokenizer | None:
    """openai-whisper's tokenizer; None if OpenAI has no vocabulary of this size."""
    return get_tokenizer(dims) if dims.n_vocab in SIZES else None


def text_tokens(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every text token, by id: all ids below <|endoftext|>."""
    return [tokenizer.encoding.decode_single_token_bytes(i) for i in range(tokenizer.eot)]


def suppressed(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that `whisper` never samples, and never first, in order."""
    t = tokenizer
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return tuple(sorted({*t.non_speech_tokens, *prompts})), (*t.encode(" "), t.eot)


@cache
def byte_letters() -> tuple[str, ...]:
    """The printable character for each of the 256 bytes in GPT-2's vocabulary files.

    Bytes that are printable in Latin-1, except the soft hyphen, stand for themselves; the others
    are the characters from 256 up, in order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A text token as GPT-2's vocabulary files spell it: b" a" is "Ġa"."""
    return token.decode("latin-1").translate(byte_letters())


def with_new_names(ids: Mapping[str, int]) -> dict[str, int]:
    """Token -> id, with openai-whisper's names for those that have had others."""
    renamed = {new: ids[old] for old, new in OLD_NAMES.items() if old in ids and new not in ids}
    return {name: i for name, i in ids.items() if OLD_NAMES.get(name) not in renamed} | renamed


def is_openai_table(ids: Mapping[str, int], tokenizer: Tokenizer) -> bool:
    """Whether token -> id are openai-whisper's as far as they decide a text: all tokens of text,
    and the special ones that are used. Timestamps are found by their place; a language's name
    counts only where the model has several.
    """
    ids, special = with_new_names(ids), tokenizer.special_tokens
    text = map(spelled, text_tokens(tokenizer))
    expected = {token: i for i, token in enumerate(text) if token or token in ids}
    names = (*USED, *(tokenizer.all_language_codes if tokenizer.language else ()))
    used = {"<|endoftext|>": tokenizer.eot} | {f"<|{n}|>": special[f"<|{n}|>"] for n in names}
    stamps = {name: i for name, i in special.items() if i >= tokenizer.timestamp_begin}
    expected |= used | {name: i for name, i in stamps.items() if name in ids}
    taken = {*range(tokenizer.eot), *used.values()}
    others = ids.keys() - expected.keys()
    return expected.items() <= ids.items() and taken.isdisjoint(map(ids.__getitem__, others))
