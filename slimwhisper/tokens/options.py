"""The options about languages and prompts, and how their texts become tokens.

Names and defaults are those of `whisper`. `hotwords` and `multilingual` are options of
faster-whisper; `languages` is one of slimwhisper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slimwhisper.errors import OptionError, warnings_to
from slimwhisper.option_group import TASKS, ModelFacts, OptionGroup, asks_detection, option
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, language_code
from slimwhisper.types import Dims

ENGLISH = {"language": "en", "task": "transcribe", "multilingual": False}
TURBO = (4, 1280)  # decoder layers, and width, of the models that were not trained to translate
MOST_CHARACTERS = 1_000_000  # a second's work, for the few at the end that count
decoding = partial(option, section="decoding")
prompting = partial(option, section="prompting")


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
        if values.get("task", "") is None:  # `whisper` takes it for the default
            del values["task"]
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
            warnings_to.get()(f"{model.name} is English-only: {what}")
            replaced[key] = english
    return replaced


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
        prefix: The text, or its tokens, that every window's text continues, and which is not in
            it. None means no text.
        hotwords: Words to expect, which are put into the prompt of every window. They have no
            effect with `prefix`. None means no words.
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
    prefix: str | tuple[int, ...] | None = prompting(None, "text that every window continues")
    hotwords: str | None = prompting(None, "expected words, in every prompt without --prefix")

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
            if (length := len(value or ())) > MOST_CHARACTERS:
                what = f"{key} has {length:,} characters"
                raise OptionError(f"{what}; give at most {MOST_CHARACTERS:,}")
            if value and vocabulary.sot_prev is None and key != "prefix":
                reason = f"its vocabulary has no <|startofprev|>; drop {key}"
                raise OptionError(f"{model.name}: {reason}")
            if isinstance(value, tuple) and any(t not in range(vocabulary.size) for t in value):
                rule = f"give a text, or token ids from 0 to {vocabulary.size - 1}"
                raise OptionError(f"{key} {value!r}: {rule}")


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


Suppressed = str | tuple[int | str, ...] | None  # the option `suppress_tokens`


def token_entries(vocabulary: Vocabulary, option: Suppressed) -> list[int | str]:
    """The token ids, -1 and "numerals" that the option names. Raises OptionError."""
    entries = option.split(",") if option and isinstance(option, str) else option or ()
    try:
        found = [NUMERALS if str(e).strip() == NUMERALS else int(e) for e in entries]
    except (TypeError, ValueError):
        raise OptionError(
            f"suppress_tokens {option!r}: give token ids, -1 or {NUMERALS}, separated by commas"
        ) from None
    if any(e != NUMERALS and e not in range(-1, vocabulary.size) for e in found):
        raise OptionError(f"suppress_tokens {option!r}: token ids are -1 to {vocabulary.size - 1}")
    return found


def suppressed_tokens(vocabulary: Vocabulary, option: Suppressed) -> list[int]:
    """Tokens never sampled: those requested, and special tokens that only a prompt may contain.

    -1 in `option` means the model's list, or all symbols that are not spoken; "numerals", the
    tokens of `numerals`. None or "" suppresses nothing.
    """
    entries = token_entries(vocabulary, option)
    if not entries:
        return []
    tokens = [t for t in entries if isinstance(t, int) and t >= 0]
    if NUMERALS in entries:
        tokens += numerals(vocabulary)
    if -1 in entries and vocabulary.suppressed is not None:
        return [*tokens, *vocabulary.suppressed]
    t = vocabulary.tokenizer()
    if -1 in entries:
        tokens += t.non_speech_tokens
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return [*tokens, *(token for token in prompts if token is not None)]


def numerals(vocabulary: Vocabulary) -> list[int]:
    """The tokens of text with a digit, %, $ or £: without them, numbers are written as words,
    which can be aligned with what is spoken.
    """
    decode = vocabulary.tokenizer().decode
    tokens = (token for ids in vocabulary.texts for token in ids)
    return [t for t in tokens if any(c.isdecimal() or c in NUMERAL_SIGNS for c in decode([t]))]
