"""The token ids that decoding needs: special tokens by name, timestamps and text as ranges.

`get_vocabulary` returns those of openai-whisper's tables; `slimwhisper.checkpoint.vocabulary` reads
those of a model's files.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from slimwhisper.errors import OptionError
from slimwhisper.option_group import TASKS
from slimwhisper.tokens.languages import language_hint, possible_codes, whispers_code
from slimwhisper.types import Dims, SpecialTokens

if TYPE_CHECKING:
    from slimwhisper.tokens.encoding import Tokenizer

SIZES = (51_864, 51_865, 51_866)  # openai-whisper's: English, multilingual, large-v3's


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
    from slimwhisper.tokens import encoding  # imports tiktoken

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
