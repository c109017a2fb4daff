"""Checks the user's options, and that the model supports them."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from slimwhisper.audio.formats import check_track
from slimwhisper.checkpoint.settings import GenerationSettings, Setting
from slimwhisper.errors import OptionError
from slimwhisper.options import TASKS, OptionHelp, Options
from slimwhisper.speakers.choice import as_pairs, check_speakers
from slimwhisper.text import not_one_of
from slimwhisper.tokens.languages import asks_detection
from slimwhisper.tokens.prompts import check_lengths, prefix_tokens
from slimwhisper.tokens.spellings import read_hot_words, spellings
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary, language_code
from slimwhisper.trust import REASONS
from slimwhisper.types import Dims

IGNORED = ("fp16",)  # whisper's; the dtype is chosen when a model is loaded
TEXTS = ("initial_prompt", "prefix")  # or their tokens
LISTS = ("temperature", "clip_timestamps", "suppress_tokens", "languages", "drop", "channel_names")
ENGLISH = {"language": "en", "task": "transcribe", "multilingual": False}
# types of options that have no bounds: what is taken for them, and in words
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "bool": ((Integral,), "True or False"),
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    "tuple": ((tuple,), "a list"),
}
NEED_WORDS = ("diarize", "sentences")  # options that imply word_timestamps

logger = logging.getLogger("slimwhisper")


def make_options(
    dims: Dims,
    name: str = "this model",
    vocabulary: Vocabulary | None = None,
    settings: GenerationSettings | None = None,
    **values: Any,
) -> Options:
    """Options of these values for a model of these dimensions.

    vocabulary: None: Whisper's for these dimensions. settings: the model's own; they are the
    defaults of options that are not given.

    Raises `OptionError` with the name, the value and what to do; `DependencyError` for a package
    that an option needs.
    """
    if values.pop("prompt", None) is not None:  # one of `whisper`'s, which replaces it as well
        raise OptionError("prompt: every window has its own here; give initial_prompt, or decode")
    check_names(Options, (key for key in values if key not in IGNORED))
    values = plain_values(values)
    for key in (*LISTS, *TEXTS, "hot_words"):
        value = values.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            values[key] = tuple(value)
    if isinstance(values.get("languages"), tuple) and any(map(asks_detection, values["languages"])):
        values["languages"] = ()
    if "known_speakers" in values:
        values["known_speakers"] = as_pairs(values["known_speakers"] or ())
    words = values.pop("hot_words", None)
    if words is not None:
        values["hot_words"] = read_hot_words(words) if isinstance(words, str | Path) else words
    vocabulary = vocabulary or get_vocabulary(dims)
    values = _defaults(dims, vocabulary, settings, values) | values
    if not vocabulary.languages:
        values = _in_english(values, name, vocabulary)
    if any(values.get(key) for key in NEED_WORDS):
        values["word_timestamps"] = True
    if values.get("channels"):  # most of each channel is silence, in which others speak
        values = {"vad_filter": not values.get("parallel"), "word_timestamps": True} | values
    options = Options(**{k: v for k, v in values.items() if k not in IGNORED})
    check_track(options.audio_track)
    _check_clips(options)
    check_rows(options)
    check_lengths(options)
    _check_search(options)
    check_flags(options.drop)
    check_speakers(options)
    _check_model(options, dims, name, vocabulary)
    return options


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name as they enter: numbers and arrays of numpy and torch as Python's, and None
    for a language that is to be detected.
    """
    plain = {name: plain_value(value) for name, value in values.items()}
    if asks_detection(plain.get("language")):
        plain["language"] = None
    return plain


def plain_value(value: Any) -> Any:
    """A number or an array [...] of numpy or torch, also in a list, as Python's: a list for [n]."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain_value, value))
    if type(value) is dict:
        return {key: plain_value(each) for key, each in value.items()}
    return value


def _defaults(
    dims: Dims, vocabulary: Vocabulary, settings: GenerationSettings | None, values: dict[str, Any]
) -> dict[str, Any]:
    """The model's own defaults for options that are not given."""
    defaults = {} if settings is None else settings.defaults(dims)
    if not vocabulary.languages:  # the setting names a language without a token
        defaults.pop("language", None)
        defaults.pop("task", None)
    if values.get("multilingual") or values.get("languages"):
        defaults.pop("language", None)
    if not vocabulary.timestamps:
        defaults["without_timestamps"] = True
    return defaults


def _in_english(values: dict[str, Any], name: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """What an English-only model does instead of what it cannot, as `whisper` does. Raises
    OptionError for a language that no model knows.
    """
    replaced = {}
    for key, english in ENGLISH.items():
        value = values.get(key)
        if key == "language" and isinstance(value, str):
            value = language_code(value, vocabulary, any_model=True)
        known = value in TASKS if key == "task" else isinstance(value, type(english))
        if value and value != english and known:
            _warn_once(f"{name} is English-only: {key} {english!r} is used, not {values[key]!r}")
            replaced[key] = english
    return values | replaced


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def check_names(kind: type, given_names: Iterable[str]) -> None:
    """Raise OptionError for a name that is not a field of a dataclass of options."""
    names = [row.name for row in fields(kind)]
    for name in given_names:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise OptionError(f"unknown option {name!r}; {hint}")


def check_rows(options: Any) -> None:
    """Check the choices, bounds and needs of each field of `Options` or `LiveOptions`, as its
    `OptionHelp` says. Raises OptionError.
    """
    for row in fields(options):
        limits, value = row.metadata["help"], getattr(options, row.name)
        may_be_none = str(row.type).endswith("None")
        if value == row.default or (value is None and (may_be_none or limits.low is None)):
            continue
        if limits.choices and value not in limits.choices:
            raise OptionError(f"{row.name} {not_one_of(value, limits.choices, ':')}")
        if limits.low is not None:
            _check_bounds(row.name, value, str(row.type).startswith("int"), limits)
        else:
            _check_type(row, value)
        if limits.needs and not any(getattr(options, name) for name in limits.needs):
            raise OptionError(f"{row.name} also needs {' or '.join(limits.needs)}")


def _check_type(row: "Field[Any]", value: Any) -> None:
    """Raise OptionError for a value of another type than the field's."""
    names = re.sub(r"tuple\[.*\]", "tuple", str(row.type)).split(" | ")
    kinds = [KINDS[name] for name in names if name in KINDS]
    if kinds and not any(isinstance(value, types) for types, _ in kinds):
        expected = " or ".join(words for _, words in kinds)
        raise OptionError(
            f"{row.name} {value!r} is of type {type(value).__name__}; give {expected}"
        )


def _check_bounds(name: str, value: Any, whole: bool, limits: OptionHelp) -> None:
    assert limits.low is not None
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    high = limits.high or float("inf")
    if not fits or not limits.low <= value <= high or (limits.open and value in (limits.low, high)):
        kind = "whole number" if whole else "number"
        end = "up" if limits.high is None else f"to {limits.high}"
        allowed = f"from {limits.low} {end}"
        if limits.open:
            allowed = f"between {limits.low} and {limits.high}"
        raise OptionError(f"{name} {value!r} is not a {kind} {allowed}")


def _check_search(options: Options) -> None:
    temperatures = options.temperatures
    if not temperatures or any(not isinstance(t, Real) or not 0 <= t <= 10 for t in temperatures):
        rule = "give one number, or several to try in turn, from 0 (greedy) to 10"
        raise OptionError(f"temperature {options.temperature!r}: {rule}")
    if options.patience is not None and round((options.beam_size or 1) * options.patience) < 1:
        raise OptionError(f"patience {options.patience!r} ends the search at once; give 1.0")


def check_flags(names: Iterable[str]) -> None:
    """Raise OptionError for a name in `Options.drop` that is not a flag's."""
    for name in names:
        if name not in REASONS:
            raise OptionError(f"drop {not_one_of(name, REASONS, ':')}")


def _check_clips(options: Options) -> None:
    try:
        seconds = options.clip_seconds
    except (TypeError, ValueError):
        seconds = [-1.0]
    if any(not 0 <= t < float("inf") for t in seconds):
        rule = "give seconds, start,end,start,end,... such as '0,12.5,60'"
        raise OptionError(f"clip_timestamps {options.clip_timestamps!r}: {rule}")
    if options.parallel and options.vad_filter:
        raise OptionError("parallel already skips audio without speech; drop vad_filter")


def _check_languages(options: Options, vocabulary: Vocabulary) -> None:
    for language in options.languages:
        try:
            language_code(language, vocabulary)
        except OptionError as error:
            raise OptionError(f"languages: {error}") from None
    if options.languages and options.language is not None:
        raise OptionError("languages limits the languages to detect; give it or language, not both")


def changed_settings(
    dims: Dims, vocabulary: Vocabulary, settings: GenerationSettings
) -> list[Setting]:
    """The settings of a model that make it decode differently from Whisper's own models."""
    plain = Options()
    lists = {
        "suppress_tokens": vocabulary.suppressed is not None,
        "begin_suppress_tokens": vocabulary.suppressed_first is not None,
        "is_multilingual": settings.is_multilingual is False and dims.is_multilingual,
    }
    options = {"max_initial_timestamp_index": "max_initial_timestamp", "max_length": "sample_len"}
    defaults = settings.defaults(dims)

    def changes(row: Setting) -> bool:
        name = options.get(row.name, row.name)
        if row.name in lists:
            return lists[row.name]
        return not row.followed or defaults.get(name) not in (None, getattr(plain, name, None))

    return [row for row in settings.rows() if row.name != "return_timestamps" and changes(row)]


def _check_model(options: Options, dims: Dims, name: str, vocabulary: Vocabulary) -> None:
    if options.language is not None:
        language_code(options.language, vocabulary)
    _check_languages(options, vocabulary)
    if options.task == "translate":
        if dims.n_text_layer == 4 and dims.n_text_state == 1280:
            raise OptionError(f"{name}: turbo cannot translate; use large-v3 or medium")
        if "translate" not in vocabulary.tasks:
            raise OptionError(f"{name}: its vocabulary has no <|translate|>; use task='transcribe'")
    _check_tokens(options, name, vocabulary)
    prefix_tokens(vocabulary.tokenizer(), dims, options)
    limit = dims.n_text_ctx // 2
    if options.sample_len is not None and not 1 <= options.sample_len <= limit:
        raise OptionError(f"sample_len {options.sample_len!r} is not between 1 and {limit}")


def _check_tokens(options: Options, name: str, vocabulary: Vocabulary) -> None:
    """Check options that need special tokens, which a fine-tune's vocabulary may lack."""
    if not options.without_timestamps and not vocabulary.timestamps:
        raise OptionError(f"{name}: its vocabulary has no timestamps; drop without_timestamps")
    if vocabulary.sot_prev is None:
        for key in ("initial_prompt", "hotwords"):
            if getattr(options, key):
                raise OptionError(f"{name}: its vocabulary has no <|startofprev|>; drop {key}")
    ids = range(vocabulary.size)
    for key, prompt in ((key, getattr(options, key)) for key in TEXTS):
        if isinstance(prompt, tuple) and any(token not in ids for token in prompt):
            raise OptionError(f"{key} {prompt!r}: give a text, or token ids from 0 to {ids[-1]}")
    spellings(vocabulary, tuple(options.hot_words), options.hot_word_bonus)  # kept for `make_rules`
    plain = Options().no_speech_threshold
    if vocabulary.no_speech is None and options.no_speech_threshold not in (None, plain):
        raise OptionError(f"{name}: its vocabulary has no <|nospeech|>; drop no_speech_threshold")
