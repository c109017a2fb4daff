"""OpenAI's forms, `/v1/audio/transcriptions` and `/v1/audio/translations`, checked.

The fields are those of openai-python 3.54 (types/audio/transcription_create_params.py), and two of
our own, "sentences" and "on_failure". docs/openai.md lists them all.
"""

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, Self
from urllib.parse import quote

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import (
    Fields,
    Text,
    Texts,
    UploadForm,
    check_form,
    one_of,
    refused,
    wrong,
)
from slimwhisper.app.api.references import Reference, read_references
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import Models, openai_model
from slimwhisper.errors import DependencyError
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.speakers.choice import require
from slimwhisper.types import ON_FAILURE

WRITTEN = tuple(name for name in FORMATS if name not in ("txt", "json"))  # by `outputs`
RESPONSE_FORMATS = ("json", "text", "verbose_json", "diarized_json", *WRITTEN)
STREAMED = ("json", "text", "diarized_json")
GRANULARITIES = ("segment", "word")
WITH_WORDS = ("verbose_json", "lrc", "ass")  # may have each word's time
WITH_SPEAKERS = ("diarized_json", "rttm")
MAX_NAME_LENGTH = 200  # characters of a file's name
MAX_PADDING = 10_000  # milliseconds
MAX_WARNINGS = 5
MAX_NAME = 40  # characters of a field's name in a header


@dataclass(slots=True)
class Wanted:
    """A checked request: what both forms, OpenAI's and whisper.cpp's, are turned into."""

    upload: UploadFile
    format: str  # of the response
    model: ModelChoice
    served_by: str  # the model's name, as it is shown
    options: dict[str, Any]  # fields of `slimwhisper.Options`
    asked: str = ""  # OpenAI's model that was asked for, without a date; "": one of ours
    granularities: tuple[str, ...] = ("segment",)  # of verbose_json
    words_inside: bool = False  # verbose_json has each segment's words in it, as whisper.cpp
    stream: bool = False
    references: tuple[Reference, ...] = ()
    unknown: list[str] = field(default_factory=list)  # fields that were ignored

    def headers(self) -> dict[str, str]:
        """Of the response: which model served it, and which fields were ignored."""
        found = {"X-Slimwhisper-Model": quote(self.served_by)}
        if self.unknown:
            shown = [f'unknown field "{quote(n[:MAX_NAME])}" was ignored' for n in self.unknown]
            more = len(shown) - MAX_WARNINGS
            rest = [f"and {more} more"] if more > 0 else []
            found["X-Slimwhisper-Warning"] = "; ".join([*shown[:MAX_WARNINGS], *rest])
        return found


def display_name(given: str | None) -> str:
    """A file's name as the client sent it, made safe to show: no folders, printable, short."""
    name = PurePath((given or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-MAX_NAME_LENGTH:] or "audio"


def choose_model(name: str | None, models: Models) -> tuple[ModelChoice, str]:
    """The model for a request's name, and its name as it is shown. Raises CheckpointError."""
    found = models.resolve(name)
    return ModelChoice(found), models.shown if found == models.default else found


class Chunking(Fields):
    """A chunking_strategy: how pieces of speech are found. Its fields are named as our options."""

    model_config = ConfigDict(extra="allow", strict=False)

    type: Annotated[str, one_of(("auto", "server_vad"))]
    vad_threshold: float = Field(0.5, alias="threshold", gt=0, lt=1)
    vad_speech_pad_ms: int = Field(0, alias="prefix_padding_ms", ge=0, le=MAX_PADDING)
    vad_min_silence_duration_ms: int = Field(0, alias="silence_duration_ms", ge=0, le=MAX_PADDING)

    @model_validator(mode="after")
    def _settings_are_known(self) -> Self:
        if self.model_extra or (self.type == "auto" and len(self.model_fields_set) > 1):
            settings = "threshold, prefix_padding_ms, silence_duration_ms"
            raise wrong(f"auto has no settings, and server_vad only {settings}")
        return self


def _parsed(given: object) -> object:
    """The text "auto", or JSON."""
    if given == "auto":
        return {"type": "auto"}
    if isinstance(given, str):
        try:
            given = from_json(given, allow_inf_nan=False)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise wrong("give auto, or a server_vad object")
    return given


class TranscriptionForm(UploadForm):
    """The fields, as they are sent."""

    model: Text | None = None
    response_format: Annotated[str, one_of(RESPONSE_FORMATS)] = "json"
    prompt: Text | None = None
    keywords: Texts = Field((), alias="keywords[]")
    language: Text | None = None
    languages: Texts = Field((), alias="languages[]")
    temperature: float = Field(0.0, ge=0, le=1)  # 0: raised as it is needed
    timestamp_granularities: tuple[Annotated[str, one_of(GRANULARITIES)], ...] = Field(
        (), alias="timestamp_granularities[]"
    )
    include: tuple[Annotated[str, one_of(("logprobs",))], ...] = Field((), alias="include[]")
    stream: bool = False
    chunking_strategy: Annotated[Chunking, BeforeValidator(_parsed)] | None = None
    known_speaker_names: Texts = Field((), alias="known_speaker_names[]")
    known_speaker_references: tuple[str, ...] = Field((), alias="known_speaker_references[]")
    sentences: bool = False
    # the default is the server's: nobody looks over these texts
    on_failure: Annotated[str, one_of(ON_FAILURE)] = "best"

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields chunking_strategy[key] are one."""
        begin = "chunking_strategy["
        inside = [name for name in given if name.startswith(begin) and name.endswith("]")]
        found = {name[len(begin) : -1]: given.pop(name) for name in inside}
        return {"chunking_strategy": found, **given} if found else given

    def options(self) -> dict[str, Any]:
        """The fields that are options of ours."""
        chunking = self.chunking_strategy
        settings = chunking and chunking.model_dump(exclude={"type"}, exclude_unset=True)
        found = {
            "initial_prompt": self.prompt,
            "hotwords": ", ".join(self.keywords),
            "language": self.language,
            "languages": self.languages,
            "temperature": self.temperature,
            "sentences": self.sentences,
            "on_failure": self.on_failure,
            "token_logprobs": bool(self.include),
            "word_timestamps": "word" in self.timestamp_granularities,
            "diarize": "embedding" if self.response_format in WITH_SPEAKERS else None,
            "parallel": chunking is not None,
        }
        return {name: value for name, value in found.items() if value} | (settings or {})


def read_request(form: FormData, task: str, models: Models) -> Wanted:
    """What a form asks for. task: "transcribe" or "translate".

    Raises APIError for a field that cannot be honoured, CheckpointError for the model.
    """
    fields = check_form(TranscriptionForm, form)
    model, served_by = choose_model(fields.model, models)
    asked = openai_model(fields.model) or ""
    wanted = Wanted(
        fields.file,
        fields.response_format,
        model,
        served_by,
        {"task": task, **fields.options()},
        asked,
        granularities=fields.timestamp_granularities or ("segment",),
        stream=fields.stream,
        references=read_references(fields.known_speaker_names, fields.known_speaker_references),
        unknown=list(fields.model_extra or ()),
    )
    _refuse_combinations(wanted, bool(fields.timestamp_granularities))
    return wanted


def _refuse_combinations(wanted: Wanted, granular: bool) -> None:
    """Raises APIError for fields that contradict each other.

    granular: whether timestamp_granularities were sent.
    """
    format, options = wanted.format, wanted.options
    if granular and format not in WITH_WORDS:
        name = "timestamp_granularities[]"
        raise refused(name, f"{name} needs response_format {', '.join(WITH_WORDS)}")
    if wanted.stream and format not in STREAMED:
        raise refused("stream", f"stream needs response_format {', '.join(STREAMED)}")
    if "token_logprobs" in options and format != "json":
        raise refused("include[]", "include[]=logprobs needs response_format=json")
    if "sentences" in options and format in ("json", "text"):
        segments = ", ".join(("verbose_json", "diarized_json", *WRITTEN))
        message = f"sentences cuts segments, and {format} has none; choose {segments}"
        raise refused("sentences", message)
    if "language" in options and "languages" in options:
        message = "language says which, languages[] what to choose from; send one of them"
        raise refused("languages[]", message)
    if wanted.references and format not in WITH_SPEAKERS:
        name = "known_speaker_names[]"
        raise refused(name, f"{name} needs response_format {', '.join(WITH_SPEAKERS)}")
    if format in WITH_SPEAKERS:
        if options["task"] == "translate":
            message = "a translation is not diarized; send it to /v1/audio/transcriptions"
            raise refused("response_format", message)
        try:
            require("embedding", f"response_format {format}")
        except DependencyError as error:
            message = f"{error}, on the server"
            raise APIError(400, message, "not_installed", "response_format") from error
