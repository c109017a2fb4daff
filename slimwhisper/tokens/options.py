"""The options about languages, prompts and hot words, and how their texts become tokens.

Names and defaults are those of `whisper`. `hotwords` and `multilingual` are options of
faster-whisper; `languages`, `hot_words` and `hot_word_bonus` are options of slimwhisper. A list of
hot words has one phrase a line, with its own bonus after a tab if it has one.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimwhisper.disk import content_digest
from slimwhisper.errors import OptionError
from slimwhisper.option_group import TASKS, ModelFacts, OptionGroup, asks_detection, option
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, language_code
from slimwhisper.types import Dims

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENGLISH = {"language": "en", "task": "transcribe", "multilingual": False}
TURBO = (4, 1280)  # decoder layers, and width, of the models that were not trained to translate
decoding = partial(option, section="decoding")
prompting = partial(option, section="prompting")

logger = logging.getLogger("slimwhisper")


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(OptionGroup):
    """The language that is spoken, and the language of the text.

    `multilingual` is an option of faster-whisper, `languages` one of slimwhisper.

    Attributes:
        task: "transcribe" writes in the language that is spoken, "translate" in English. The
            default is "transcribe".
        language: The language that is spoken, by its code or name. None means that it is detected
            for each file.
        languages: The languages to choose from when the language is detected, such as ("de", "en").
            () means all.
        multilingual: Whether to detect the language of every window. The default is False.
    """

    task: str = decoding(
        "transcribe", "transcribe in the language spoken, or translate into English", choices=TASKS
    )
    language: str | None = decoding(None, "language code or name [detected for each file]")
    languages: tuple[str, ...] = decoding((), "languages to choose from, such as de,en [all]")
    multilingual: bool = decoding(False, "detect the language of every window")

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Replace what an English-only model cannot do, as `whisper` does.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others. They are changed in place.
            model: The model that they are for.

        Raises:
            OptionError: When a language is unknown to all models.
        """
        languages = values.get("languages")
        if isinstance(languages, tuple) and any(map(asks_detection, languages)):
            values["languages"] = ()
        if values.get("multilingual") or values.get("languages"):
            defaults.pop("language", None)
        if not model.vocabulary.languages:  # the model's setting names one without a token
            defaults.pop("language", None)
            defaults.pop("task", None)
            values |= _in_english(values, model)

    def check(self, model: ModelFacts) -> None:
        """Check that the model has the languages and the task.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When it does not, or when both `language` and `languages` are given.
        """
        if self.language is not None:
            language_code(self.language, model.vocabulary)
        for language in self.languages:
            try:
                language_code(language, model.vocabulary)
            except OptionError as error:
                raise OptionError(f"languages: {error}") from None
        if self.languages and self.language is not None:
            rule = "give it or language, not both"
            raise OptionError(f"languages limits the languages to detect; {rule}")
        if self.task == "translate":
            name, dims = model.name, model.dims
            if (dims.n_text_layer, dims.n_text_state) == TURBO:
                raise OptionError(f"{name}: turbo cannot translate; use large-v3 or medium")
            if "translate" not in model.vocabulary.tasks:
                reason = "its vocabulary has no <|translate|>; use task='transcribe'"
                raise OptionError(f"{name}: {reason}")


def _in_english(values: Mapping[str, Any], model: ModelFacts) -> dict[str, Any]:
    """Raises OptionError for a language that no model knows."""
    replaced = {}
    for key, english in ENGLISH.items():
        value = values.get(key)
        if key == "language" and isinstance(value, str):
            value = language_code(value, model.vocabulary, any_model=True)
        known = value in TASKS if key == "task" else isinstance(value, type(english))
        if value and value != english and known:
            what = f"{key} {english!r} is used, not {values[key]!r}"
            _warn_once(f"{model.name} is English-only: {what}")
            replaced[key] = english
    return replaced


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


@dataclass(frozen=True, kw_only=True)
class PromptOptions(OptionGroup):
    """The text that stands before a window's text, or begins it.

    `hotwords` is an option of faster-whisper, all others are those of `whisper`.

    Attributes:
        initial_prompt: The text, or its tokens, that the first window's text continues. None means
            no text.
        carry_initial_prompt: Whether to put `initial_prompt` before the prompt of every window. The
            default is False.
        condition_on_previous_text: Whether each window's text continues the text before it. The
            default is True.
        prompt_reset_on_temperature: Text that was sampled at a higher temperature than this, from 0
            to 10, is not in the prompt of later windows. The default is 0.5.
        prefix: The text, or its tokens, that every window's text begins with. None means no text.
        hotwords: Words to expect, which are put into the prompt of every window. None means no
            words.
    """

    initial_prompt: str | tuple[int, ...] | None = prompting(
        None, "text to condition the first window on"
    )
    carry_initial_prompt: bool = prompting(
        False, "prepend --initial_prompt to the prompt of every window"
    )
    condition_on_previous_text: bool = prompting(True, "prompt each window with the preceding text")
    prompt_reset_on_temperature: float = prompting(
        0.5, "do not condition on text that was sampled at a higher temperature", low=0, high=10
    )
    prefix: str | tuple[int, ...] | None = prompting(None, "text that every window begins with")
    hotwords: str | None = prompting(None, "expected words, added to the prompt of every window")

    def check(self, model: ModelFacts) -> None:
        """Check that the texts are short enough, and that token ids are the model's.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When a text is too long, a token id is not the model's, or its vocabulary
                has no token for prompts.
        """
        vocabulary = model.vocabulary
        for key in ("initial_prompt", "prefix", "hotwords"):
            value = getattr(self, key)
            check_length(key, value)
            if value and vocabulary.sot_prev is None and key != "prefix":
                reason = f"its vocabulary has no <|startofprev|>; drop {key}"
                raise OptionError(f"{model.name}: {reason}")
            if isinstance(value, tuple) and any(t not in range(vocabulary.size) for t in value):
                rule = f"give a text, or token ids from 0 to {vocabulary.size - 1}"
                raise OptionError(f"{key} {value!r}: {rule}")


@dataclass(frozen=True, kw_only=True)
class HotWordOptions(OptionGroup):
    """Words whose tokens become more probable. They are options of slimwhisper.

    Attributes:
        hot_words: The path of a file, which is read when the options are made, or its lines. It has
            up to 10,000 words or phrases, one in a line. Their tokens get `hot_word_bonus`, or the
            number after a tab in the same line. Unlike `hotwords`, they are not a prompt. () means
            no words.
        hot_word_bonus: The number from 0 to 20 that is added to the log-probability of each token
            that continues a hot word. The default is 2.0.
    """

    # the path of a file, or its lines; the file is read when options are made
    hot_words: str | tuple[str, ...] = prompting(
        (),
        "file of up to 10,000 words or phrases, one a line, whose tokens get --hot_word_bonus, or "
        "the number after a tab; unlike --hotwords, which is a prompt [none]",
    )
    hot_word_bonus: float = prompting(
        2.0, "added to the log-probability of each token that continues a hot word", low=0, high=20
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Read the file of hot words, if there is one.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others.
            model: The model that they are for.

        Raises:
            OptionError: When the file cannot be read.
        """
        words = values.pop("hot_words", None)
        if words is not None:
            values["hot_words"] = read_hot_words(words) if isinstance(words, str | Path) else words

    def check(self, model: ModelFacts) -> None:
        """Check that the model can write the words.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When it cannot, or there are too many words.
        """
        # kept for the rules of the windows
        spellings(model.vocabulary, tuple(self.hot_words), self.hot_word_bonus)

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the digest of the file, for the journal of a job.

        Args:
            options: The options that differ from their defaults, by name.

        Returns:
            The digest, under "hot_words", if there are any.
        """
        words = options.get("hot_words")
        return {"hot_words": content_digest(words)} if words else {}


MOST_CHARACTERS = 1_000_000  # a second's work, for the few at the end that count


def check_length(key: str, text: str | Sequence[int] | None) -> None:
    """Raise OptionError for a text that is too long. key: of the option."""
    if (length := len(text or ())) > MOST_CHARACTERS:
        what = f"{key} has {length:,} characters"
        raise OptionError(f"{what}; give at most {MOST_CHARACTERS:,}")


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a user's text, in which "<|en|>" is text as well."""
    return list(tokenizer.encode(text, disallowed_special=()))


def prompt_tokens(tokenizer: Tokenizer, text: str | Sequence[int] | None) -> list[int]:
    """The tokens of a text that stands before a window's, or those that are given."""
    if isinstance(text, str):
        return encode_text(tokenizer, " " + text.strip()) if text else []
    return list(text or ())


def prefix_tokens(
    tokenizer: Tokenizer, dims: Dims, prefix: str | Sequence[int] | None, sample_len: int | None
) -> list[int]:
    """The tokens that every window's text begins with. Raises OptionError if they are too many.

    prefix: the text, or its tokens. sample_len: the most tokens of a window's text; None: half of
    what the model has positions for.
    """
    half = dims.n_text_ctx // 2
    tokens = prompt_tokens(tokenizer, prefix)
    # all of them if that is 0, as in `whisper.decode`
    tokens = tokens[sample_len - half if sample_len else 0 :]
    most = dims.n_text_ctx - half - 8
    if len(tokens) > most:
        what = f"prefix: {len(tokens)} tokens leave no room for the text; give at most {most}"
        raise OptionError(what)
    return tokens


NUMERALS = "numerals"
NUMERAL_SIGNS = frozenset("%$£")  # besides digits; whisperX's choice


def suppressed_tokens(
    vocabulary: Vocabulary, option: str | tuple[int | str, ...] | None
) -> list[int]:
    """Tokens never sampled: those requested, and special tokens that only a prompt may contain.

    -1 in `option` means the model's list, or all symbols that are not spoken; "numerals", the
    tokens of `numerals`. None or "" suppresses nothing.
    """
    if option is None or option in ("", ()):
        return []
    entries = [e.strip() for e in option.split(",")] if isinstance(option, str) else list(option)
    try:
        ids = [int(e) for e in entries if e != NUMERALS]
    except (TypeError, ValueError):
        raise OptionError(
            f"suppress_tokens {option!r}: give token ids, -1 or {NUMERALS}, separated by commas"
        ) from None
    if any(not -1 <= t < vocabulary.size for t in ids):
        raise OptionError(f"suppress_tokens {option!r}: token ids are -1 to {vocabulary.size - 1}")
    tokens = [t for t in ids if t >= 0]
    if NUMERALS in entries:
        tokens += numerals(vocabulary)
    if -1 in ids and vocabulary.suppressed is not None:
        return [*tokens, *vocabulary.suppressed]
    t = vocabulary.tokenizer()
    if -1 in ids:
        tokens += t.non_speech_tokens
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return [*tokens, *(token for token in prompts if token is not None)]


def numerals(vocabulary: Vocabulary) -> list[int]:
    """The tokens of text with a digit, %, $ or £: without them, numbers are written as words,
    which can be aligned with what is spoken.
    """
    tokenizer = vocabulary.tokenizer()

    def has_numeral(token: int) -> bool:
        return any(c.isdecimal() or c in NUMERAL_SIGNS for c in tokenizer.decode([token]))

    return [token for ids in vocabulary.texts for token in ids if has_numeral(token)]


def suppressed_first_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens that a text may not begin with: the model's list, or a space and the end."""
    if vocabulary.suppressed_first is not None:
        return list(vocabulary.suppressed_first)
    return [*vocabulary.tokenizer().encode(" "), vocabulary.eot]


MOST_PHRASES = 10_000
LONGEST = 200  # characters of a phrase
HIGHEST = 20.0  # bonus of a token, a difference of log-probabilities
MAX_BYTES = 8 << 20  # of a file
# first and last code: Thai, Lao, Tibetan, Myanmar and Khmer, which have no spaces between words
UNSPACED = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))


class Spelling(NamedTuple):
    """One way to write a phrase."""

    tokens: tuple[int, ...]
    bonus: float  # of each token
    # whether it may follow a letter: it begins with a space, or its script has none between words
    anywhere: bool


def read_hot_words(path: str | Path) -> tuple[str, ...]:
    """The lines of a file in UTF-8. Raises OptionError."""
    name, path = f"hot_words: {path}", Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise OptionError(f"{name} has more than {MAX_BYTES >> 20} MiB; give a shorter list")
        return tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except OSError as error:
        raise OptionError(f"{name} cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError:
        raise OptionError(f"{name} is not UTF-8; save it as UTF-8") from None


def hot_word_lines(text: str) -> tuple[str, ...]:
    """The lines of a text that someone has typed or sent, without those that are empty."""
    return tuple(line for line in text.splitlines() if line.strip())


def parse_hot_words(lines: Sequence[str], bonus: float) -> dict[str, float]:
    """The phrases of a list, and the bonus of each token of them: of a phrase that is there twice,
    the larger one. bonus: of phrases without their own.

    Raises OptionError for an empty line, a bonus that is none, and a list or phrase too long.
    """
    if len(lines) > MOST_PHRASES:
        raise OptionError(f"hot_words: {len(lines):,} phrases; give at most {MOST_PHRASES:,}")
    phrases: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise OptionError(f"hot_words: line {number} is {line!r}; give a text")
        text, tab, own = line.partition("\t")
        phrase = " ".join(text.split())
        if not phrase:
            raise OptionError(f"hot_words: line {number} is empty; leave it out")
        if len(phrase) > LONGEST:
            length = f"{len(phrase):,} characters"
            raise OptionError(f"hot_words: line {number} has {length}; give at most {LONGEST}")
        points = _bonus(own, number) if tab else bonus
        phrases[phrase] = max(points, phrases.get(phrase, 0.0))
    return phrases


def _bonus(text: str, line: int) -> float:
    try:
        bonus = float(text)
    except ValueError:
        bonus = float("nan")
    if not 0 <= bonus <= HIGHEST:
        rule = f"give a number from 0 to {HIGHEST:g} after the tab"
        raise OptionError(f"hot_words: line {line}: the bonus {text.strip()!r} is none; {rule}")
    return bonus


@lru_cache(maxsize=8)
def spellings(vocabulary: Vocabulary, lines: tuple[str, ...], bonus: float) -> tuple[Spelling, ...]:
    """All spellings of the phrases of a list: as given, in lower case, and with the first letter,
    or that of every word, in upper case; each with a space before it, and without.

    Raises OptionError as `parse_hot_words`, and for a phrase that is not text in this vocabulary.
    """
    tokenizer, found = vocabulary.tokenizer(), []
    for phrase, points in parse_hot_words(lines, bonus).items():
        for text in _cases(phrase):
            spaced = _has_spaces(text)
            for before in (" ", ""):
                tokens = _encoded(vocabulary, tokenizer, before + text)
                found.append(Spelling(tokens, points, bool(before) or not spaced))
    return tuple(found)


def _cases(phrase: str) -> Iterator[str]:
    words = phrase.split(" ")
    lower = phrase.lower()
    capitals = " ".join(word[:1].upper() + word[1:] for word in words)
    yield from dict.fromkeys((phrase, lower, phrase[:1].upper() + phrase[1:], capitals))


def _has_spaces(text: str) -> bool:
    """Whether words of the script of its first letter have spaces between them."""
    code = ord(text[0])
    wide = unicodedata.east_asian_width(text[0]) in "WF"
    hangul = 0xAC00 <= code <= 0xD7A3
    return hangul or not (wide or any(first <= code <= last for first, last in UNSPACED))


def _encoded(vocabulary: Vocabulary, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    tokens = tuple(encode_text(tokenizer, text))
    same = tokenizer.decode(list(tokens)) == text
    if not (same and tokens and all(map(vocabulary.is_text, tokens))):
        what = "is not text that this model can write; leave it out"
        raise OptionError(f"hot_words: {text.strip()[:40]!r} {what}")
    return tokens


@lru_cache(maxsize=8)
def word_ends(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """[V]: whether a word may begin after each token without a space: it ends with a sign that is
    no letter or digit, or is not text.
    """
    import numpy as np  # `--help` needs only the options

    decode, ends = vocabulary.tokenizer().decode, np.ones(vocabulary.size, dtype=np.bool_)
    for ids in vocabulary.texts:
        for token in ids:
            last = decode([token])[-1:]
            # the bytes of a part of a character are no sign
            ends[token] = not (last.isalnum() or last == "\N{REPLACEMENT CHARACTER}")
    return ends
