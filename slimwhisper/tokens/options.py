"""The options about languages, prompts and hot words.

Names and defaults are those of `whisper`. `hotwords` and `multilingual` are options of
faster-whisper; `languages`, `hot_words` and `hot_word_bonus` are options of slimwhisper. What they
need is imported when it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from slimwhisper.disk import content_digest
from slimwhisper.errors import OptionError
from slimwhisper.option_group import TASKS, ModelFacts, OptionGroup, asks_detection, option

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
        from slimwhisper.tokens.vocabulary import language_code

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
    from slimwhisper.tokens.vocabulary import language_code

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
        from slimwhisper.tokens.texts import check_length

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
        from slimwhisper.tokens.texts import read_hot_words

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
        from slimwhisper.tokens.texts import spellings

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
