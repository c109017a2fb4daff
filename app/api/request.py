"""OpenAI's forms, `/v1/audio/transcriptions` and `/v1/audio/translations`, checked.

The fields are those of openai-python 3.54 (types/audio/transcription_create_params.py), and two of
our own, "sentences" and "on_failure". docs/openai.md lists them all.
"""

from pathlib import PurePath
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import FormData

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.form import SHOWN, Fields, not_one_of, refused
from slimwhisper.app.api.references import read_references
from slimwhisper.app.api.wanted import Wanted
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import DIARIZE, Models, openai_model
from slimwhisper.errors import CheckpointError, DependencyError
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.speakers.choice import require
from slimwhisper.types import CHUNK_SECONDS, ON_FAILURE

WRITTEN = tuple(name for name in FORMATS if name not in ("txt", "json"))  # by `outputs`
RESPONSE_FORMATS = ("json", "text", "verbose_json", "diarized_json", *WRITTEN)
STREAMED = ("json", "text", "diarized_json")
GRANULARITIES = ("segment", "word")
WITH_WORDS = ("verbose_json", "lrc", "ass")  # may have each word's time
WITH_SPEAKERS = ("diarized_json", "rttm")
MAX_NAME_LENGTH = 200  # characters of a file's name
MAX_PADDING = 10_000  # milliseconds
VAD = {  # OpenAI's names -> ours, and the most
    "threshold": ("vad_threshold", 1.0),
    "prefix_padding_ms": ("vad_speech_pad_ms", MAX_PADDING),
    "silence_duration_ms": ("vad_min_silence_duration_ms", MAX_PADDING),
}


def display_name(given: str | None) -> str:
    """A file's name as the client sent it, made safe to show: no folders, printable, short."""
    name = PurePath((given or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-MAX_NAME_LENGTH:] or "audio"


def choose_model(name: str | None, models: Models) -> tuple[ModelChoice, str]:
    """The model for a request's name, and its name as it is shown. Raises APIError."""
    try:
        found = models.resolve(name)
    except CheckpointError as error:
        raise as_api_error(error) from error
    return ModelChoice(found), models.shown if found == models.default else found


def read_request(form: FormData, task: str, models: Models) -> Wanted:
    """What a form asks for. task: "transcribe" or "translate".

    Raises APIError for a field that cannot be honoured.
    """
    fields = Fields(form)
    upload, name = fields.upload(), fields.text("model")
    model, served_by = choose_model(name, models)
    asked = openai_model(name) or ""
    format = fields.choice("response_format", RESPONSE_FORMATS) or "json"
    granularities = _several(fields, "timestamp_granularities", GRANULARITIES)
    include = _several(fields, "include", ("logprobs",))
    options = {"task": task, **_options(fields), **_chunking(fields)}
    wanted = Wanted(
        upload,
        task,
        format,
        model,
        served_by,
        options,
        asked,
        granularities=tuple(granularities) or ("segment",),
        stream=fields.flag("stream"),
        logprobs=bool(include),
        references=read_references(fields),
    )
    if asked == DIARIZE and not options.get("parallel"):
        wanted.longest = CHUNK_SECONDS
    if wanted.logprobs:
        options["token_logprobs"] = True
    if "word" in granularities:
        options["word_timestamps"] = True
    if format in WITH_SPEAKERS:
        options["diarize"] = "embedding"
    _refuse_combinations(wanted, fields)
    wanted.unknown = fields.unknown()
    return wanted


def _options(fields: Fields) -> dict[str, Any]:
    """The fields that are options of ours as they stand."""
    found: dict[str, Any] = {
        "initial_prompt": fields.text("prompt"),
        "hotwords": ", ".join(fields.texts("keywords")) or None,
        "language": fields.text("language"),
        "languages": tuple(fields.texts("languages")),
        "temperature": fields.number("temperature", 0, 1) or None,  # 0: raised as it is needed
        "sentences": fields.flag("sentences"),
        # the default is the server's: nobody looks over these texts
        "on_failure": fields.choice("on_failure", ON_FAILURE) or "best",
    }
    return {name: value for name, value in found.items() if value}


def _several(fields: Fields, name: str, known: tuple[str, ...]) -> list[str]:
    found = fields.texts(name)
    for value in found:
        if value not in known:
            raise not_one_of(f"{name}[]", value, known)
    return found


def _chunking(fields: Fields) -> dict[str, Any]:
    """chunking_strategy: "auto", or a server_vad, as JSON or as fields chunking_strategy[key]."""
    name = "chunking_strategy"
    text, given = fields.text(name), dict[str, Any](fields.inside(name))
    if text == "auto":
        given = {"type": "auto"}
    elif text is not None:
        try:
            given = from_json(text, allow_inf_nan=False)
        except ValueError:
            given = {}
        if not isinstance(given, dict) or not given:
            raise refused(name, f"{name} {text[:SHOWN]!r}: give auto, or a server_vad object")
    if not given:
        return {}
    kind = given.pop("type", None)
    if kind not in ("auto", "server_vad"):
        raise not_one_of(f"{name} type", str(kind), ("auto", "server_vad"))
    found: dict[str, Any] = {"parallel": True}
    for key, value in given.items():
        if key not in VAD or kind == "auto":
            known = ("type", *VAD) if kind == "server_vad" else ("type",)
            raise not_one_of(f"{name} of type {kind}: the key", str(key), known)
        found[VAD[key][0]] = _setting(f"{name} {key}", value, VAD[key][1])
    return found


def _setting(name: str, value: Any, most: float) -> float:
    """A setting of the voice activity: a share between 0 and 1, or whole milliseconds."""
    whole = most > 1
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = -1.0
    fits = 0 <= number <= most and number == int(number) if whole else 0 < number < most
    if not fits or isinstance(value, bool):
        what = f"a whole number from 0 to {most:g}" if whole else "between 0 and 1"
        raise refused("chunking_strategy", f"{name} {str(value)[:SHOWN]!r} is not {what}")
    return int(number) if whole else number


def _refuse_combinations(wanted: Wanted, fields: Fields) -> None:
    """Raises APIError for fields that contradict each other, or the model that was asked for."""
    format, options, diarizes = wanted.format, wanted.options, wanted.asked == DIARIZE
    words = fields.texts("timestamp_granularities")
    segments = ", ".join(("verbose_json", "diarized_json", *WRITTEN))
    rules = (
        (
            diarizes and format not in STREAMED,
            "response_format",
            f"{DIARIZE} gives response_format {', '.join(STREAMED)}; another model gives {format}",
        ),
        (diarizes and options.get("initial_prompt"), "prompt", f"{DIARIZE} takes no prompt"),
        (diarizes and wanted.logprobs, "include[]", f"{DIARIZE} gives no logprobs"),
        (
            words and format not in WITH_WORDS,
            "timestamp_granularities[]",
            f"timestamp_granularities[] needs response_format {', '.join(WITH_WORDS)}",
        ),
        (
            wanted.stream and format not in STREAMED,
            "stream",
            f"stream needs response_format {', '.join(STREAMED)}",
        ),
        (
            wanted.logprobs and format != "json",
            "include[]",
            "include[]=logprobs needs response_format=json",
        ),
        (
            options.get("sentences") and format in ("json", "text"),
            "sentences",
            f"sentences cuts segments, and {format} has none; choose {segments}",
        ),
        (
            options.get("language") and options.get("languages"),
            "languages[]",
            "language says which, languages[] what to choose from; send one of them",
        ),
        (
            wanted.references and format not in WITH_SPEAKERS,
            "known_speaker_names[]",
            f"known_speaker_names[] needs response_format {', '.join(WITH_SPEAKERS)}",
        ),
        (
            wanted.task == "translate" and format in WITH_SPEAKERS,
            "response_format",
            "a translation is not diarized; send it to /v1/audio/transcriptions",
        ),
    )
    for wrong, field, message in rules:
        if wrong:
            raise refused(field, message)
    if format in WITH_SPEAKERS:
        try:
            require("embedding", f"response_format {format}")
        except DependencyError as error:
            message = f"{error}, on the server"
            raise APIError(400, message, "not_installed", "response_format") from error
