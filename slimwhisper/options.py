"""The user's options, checked against what the model can do."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from slimwhisper.checkpoint.settings import Setting, Settings
from slimwhisper.errors import OptionError
from slimwhisper.speakers.choice import as_pairs, check_speakers
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary, language_code
from slimwhisper.types import Dims, OptionHelp, Options

IGNORED = ("fp16",)  # whisper's; the dtype is chosen when a model is loaded
NEED_WORDS = ("diarize", "sentences")  # options that imply word_timestamps


def make_options(
    dims: Dims,
    name: str = "this model",
    vocabulary: Vocabulary | None = None,
    settings: Settings | None = None,
    **values: Any,
) -> Options:
    """Options of these values for a model of these dimensions.

    vocabulary: None: Whisper's for these dimensions. settings: that came with the model; they are
    the defaults of what is not given.

    Raises `OptionError` with the name, the value and what would work; `DependencyError` for a
    package that an option needs.
    """
    check_names(Options, (key for key in values if key not in IGNORED))
    for key in ("temperature", "clip_timestamps", "suppress_tokens", "languages"):
        value = values.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            values[key] = tuple(value)
    if "known_speakers" in values:
        values["known_speakers"] = as_pairs(values["known_speakers"] or ())
    vocabulary = vocabulary or get_vocabulary(dims)
    values = _defaults(dims, vocabulary, settings, values) | values
    if any(values.get(key) for key in NEED_WORDS):
        values["word_timestamps"] = True
    options = Options(**{k: v for k, v in values.items() if k not in IGNORED})
    check_rows(options)
    _check_search(options)
    _check_places(options)
    check_speakers(options)
    _check_model(options, dims, name, vocabulary)
    return options


def _defaults(
    dims: Dims, vocabulary: Vocabulary, settings: Settings | None, given: dict[str, Any]
) -> dict[str, Any]:
    """What the model says about the options that are not given."""
    found = {} if settings is None else settings.defaults(dims)
    if not vocabulary.languages:  # a label without a token; no option can follow it
        found.pop("language", None)
        found.pop("task", None)
    if given.get("multilingual") or given.get("languages"):
        found.pop("language", None)
    if not vocabulary.timestamps:
        found["without_timestamps"] = True
    return found


def check_names(kind: type, names: Iterable[str]) -> None:
    """Raise OptionError for a name that is no field of a dataclass of options."""
    known = [row.name for row in fields(kind)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise OptionError(f"unknown option {name!r}; {hint}")


def check_rows(options: Any) -> None:
    """Choices, bounds, and what an option needs, as the rows of its class say: of `Options`, or of
    `LiveOptions`. Raises OptionError.
    """
    for row in fields(options):
        about, value = row.metadata["help"], getattr(options, row.name)
        may_be_none = str(row.type).endswith("None")
        if value == row.default or (value is None and (may_be_none or about.low is None)):
            continue
        if about.choices and value not in about.choices:
            raise OptionError(f"{row.name} {value!r} is not one of: {', '.join(about.choices)}")
        if about.low is not None:
            _check_bounds(row.name, value, str(row.type).startswith("int"), about)
        if about.needs and not any(getattr(options, name) for name in about.needs):
            raise OptionError(f"{row.name} needs {' or '.join(about.needs)}; give that, too")


def _check_bounds(name: str, value: Any, whole: bool, about: OptionHelp) -> None:
    assert about.low is not None
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    high = about.high or float("inf")
    if not fits or not about.low <= value <= high or (about.open and value in (about.low, high)):
        kind = "whole number" if whole else "number"
        most = "up" if about.high is None else f"to {about.high}"
        places = f"from {about.low} {most}"
        if about.open:
            places = f"between {about.low} and {about.high}"
        raise OptionError(f"{name} {value!r} is not a {kind} {places}")


def _check_search(options: Options) -> None:
    temperatures = options.temperatures
    if not temperatures or any(not 0 <= t <= 10 for t in temperatures):
        raise OptionError(
            f"temperature {options.temperature!r}: give one number, or several to try in turn, "
            "from 0 (greedy) up"
        )
    if options.patience is not None and round((options.beam_size or 1) * options.patience) < 1:
        raise OptionError(f"patience {options.patience!r} leaves no text to find; give 1.0")
    if options.expected is not None and options.beam_size is not None:
        raise OptionError("expected needs greedy decoding; leave out beam_size")


def _check_places(options: Options) -> None:
    try:
        seconds = options.clip_seconds
    except (TypeError, ValueError):
        seconds = [-1.0]
    if any(not 0 <= t < float("inf") for t in seconds):
        raise OptionError(
            f"clip_timestamps {options.clip_timestamps!r}: give seconds, "
            "start,end,start,end,... such as '0,12.5,60'"
        )
    if options.parallel and options.vad_filter:
        raise OptionError("parallel leaves out what is not speech already; drop vad_filter")


def _check_languages(options: Options, vocabulary: Vocabulary) -> None:
    if not isinstance(options.languages, tuple):
        raise OptionError(f"languages {options.languages!r}: give a list, such as ['de', 'en']")
    for language in options.languages:
        try:
            language_code(language, vocabulary)
        except OptionError as error:
            raise OptionError(f"languages: {error}") from None
    if options.languages and options.language is not None:
        raise OptionError("languages are to choose from; with language, drop them")


def changed_settings(dims: Dims, vocabulary: Vocabulary, settings: Settings) -> list[Setting]:
    """The settings of a model with which it decodes otherwise than Whisper's own models."""
    plain = Options()
    lists = {
        "suppress_tokens": vocabulary.suppressed is not None,
        "begin_suppress_tokens": vocabulary.suppressed_first is not None,
        "is_multilingual": settings.is_multilingual is False and dims.is_multilingual,
    }
    options = {"max_initial_timestamp_index": "max_initial_timestamp", "max_length": "sample_len"}
    found = settings.defaults(dims)

    def changes(row: Setting) -> bool:
        name = options.get(row.name, row.name)
        if row.name in lists:
            return lists[row.name]
        return not row.followed or found.get(name, None) not in (None, getattr(plain, name, None))

    return [row for row in settings.rows() if row.name != "return_timestamps" and changes(row)]


def _check_model(options: Options, dims: Dims, name: str, vocabulary: Vocabulary) -> None:
    if options.language is not None:
        language_code(options.language, vocabulary)
    _check_languages(options, vocabulary)
    if options.multilingual and not vocabulary.languages:
        raise OptionError(f"{name} is English-only; multilingual needs a model like base")
    if options.task == "translate":
        if not vocabulary.languages:
            raise OptionError(f"{name} is English-only and cannot translate; use a model like base")
        if dims.n_text_layer == 4 and dims.n_text_state == 1280:
            raise OptionError(f"{name}: turbo cannot translate; use large-v3 or medium")
        if "translate" not in vocabulary.tasks:
            raise OptionError(f"{name}: its vocabulary has no <|translate|>; use task='transcribe'")
    _check_tokens(options, name, vocabulary)
    limit = dims.n_text_ctx // 2
    if options.sample_len is not None and not 1 <= options.sample_len <= limit:
        raise OptionError(f"sample_len {options.sample_len!r} is not between 1 and {limit}")


def _check_tokens(options: Options, name: str, vocabulary: Vocabulary) -> None:
    """Options that need special tokens which a fine-tune's vocabulary may lack."""
    if not options.without_timestamps and not vocabulary.timestamps:
        raise OptionError(
            f"{name}: its vocabulary has no timestamps; leave without_timestamps out, or say True"
        )
    if vocabulary.sot_prev is None:
        for key in ("initial_prompt", "hotwords"):
            if getattr(options, key):
                raise OptionError(f"{name}: its vocabulary has no <|startofprev|>; drop {key}")
    plain = Options().no_speech_threshold
    if vocabulary.no_speech is None and options.no_speech_threshold not in (None, plain):
        raise OptionError(f"{name}: its vocabulary has no <|nospeech|>; drop no_speech_threshold")
