"""Checks OpenAI's forms, `/v1/audio/transcriptions` and `/v1/audio/translations`.

The fields are those of openai-python 3.54 (types/audio/transcription_create_params.py), and
extensions: "channels", "channel_names[]", "sentences", "speech_only", "on_failure", "hot_words",
"hot_word_bonus" and "audio_track". docs/connect/apis.md lists them all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, BinaryIO, Self
from urllib.parse import quote

from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator
from starlette.datastructures import FormData, UploadFile

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import (
    Text,
    TextForm,
    Texts,
    UploadForm,
    check_form,
    invalid,
    json_object,
    one_of,
    option_fields,
    refused,
)
from slimwhisper.app.api.recordings import SpeakerReference, read_references
from slimwhisper.app.service.host import Models, openai_model
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.errors import CheckpointError, DependencyError, OptionError
from slimwhisper.hot_words.options import hot_word_lines, parse_hot_words
from slimwhisper.option_group import asks_detection
from slimwhisper.outputs import FORMATS
from slimwhisper.speakers.choice import require

FILE_FORMATS = tuple(name for name in FORMATS if name not in ("txt", "json"))  # of `outputs`
RESPONSE_FORMATS = ("json", "text", "verbose_json", "diarized_json", *FILE_FORMATS)
STREAMED = ("json", "text", "diarized_json")
GRANULARITIES = ("segment", "word")
WITH_WORDS = ("verbose_json", "lrc", "ass")  # may have each word's time
WITH_SPEAKERS = ("diarized_json", "rttm")
MAX_NAME_LENGTH = 200  # characters of a file's name
MAX_PADDING = 10_000  # milliseconds
MAX_WARNINGS = 5
MAX_NAME = 40  # characters of a field's name in a header
HEADER_SAFE = " ,;.:()'-/"  # of a warning in a header


@dataclass(slots=True)
class TranscriptionRequest:
    """A checked request, of any API."""

    upload: UploadFile
    format: str  # of the response
    model: ModelChoice
    served_by: str  # the model's display name
    unknown: list[str]  # fields that were ignored
    warnings: list[str]  # about the request and the file
    options: dict[str, Any] = field(default_factory=dict)  # fields of `slimwhisper.Options`
    openai_model: str = ""  # the requested model of OpenAI, without a date; "": another model
    granularities: tuple[str, ...] = ("segment",)  # of verbose_json
    words_inside: bool = False  # verbose_json has the words within each segment, as whisper.cpp
    stream: bool = False
    references: tuple[SpeakerReference, ...] = ()
    accept: str = ""  # the header: what the client wants
    convert: Callable[[BinaryIO], BinaryIO] | None = None  # the upload to a file with a header
    render: Callable[[Any], dict[str, Any]] | None = None  # `FinishedTranscript` -> another API's
    mix_instead: bool = False  # as in `Job`
    channels: int = 1  # as in `Job`, once the recording has been read

    @classmethod
    def of(
        cls, fields: TextForm, upload: UploadFile, format: str, name: str | None, models: Models
    ) -> Self:
        """The request of a form, without its options yet. name: of the model. Raises
        CheckpointError.
        """
        model, served_by, warnings = choose_model(name, models)
        return cls(upload, format, model, served_by, list(fields.model_extra or ()), warnings)

    def headers(self) -> dict[str, str]:
        """The response's headers: the model that served it, the ignored fields, and what is odd in
        the file.
        """
        return response_headers(self.served_by, self.unknown, self.warnings)


def response_headers(
    served_by: str, unknown: Iterable[str], warnings: Iterable[str]
) -> dict[str, str]:
    """The headers of a response: the model, and what is to be known of the request."""
    headers = {"X-Slimwhisper-Model": quote(served_by)}
    texts = [f'unknown field "{quote(n[:MAX_NAME])}" was ignored' for n in unknown]
    texts += [quote(text, safe=HEADER_SAFE) for text in warnings]
    if texts:
        more = len(texts) - MAX_WARNINGS
        tail = [f"and {more} more"] if more > 0 else []
        headers["X-Slimwhisper-Warning"] = "; ".join([*texts[:MAX_WARNINGS], *tail])
    return headers


def display_name(filename: str | None) -> str:
    """A file's name as the client sent it, made safe to show: no folders, printable, short."""
    name = PurePath((filename or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-MAX_NAME_LENGTH:] or "audio"


def lacking_speakers(use: str) -> str:
    """What a server without the packages that find speakers says of `use`; "": it has them."""
    try:
        require("embedding", use)
    except DependencyError as error:
        return f"{error}, on the server"
    return ""


def choose_model(name: str | None, models: Models) -> tuple[ModelChoice, str, list[str]]:
    """The model for a request's name, its display name, and a warning if it is none of the models'
    and the default one answers. Raises CheckpointError for such a name if the server is strict.
    """
    try:
        resolved, warnings = models.resolve(name), list[str]()
    except CheckpointError:
        if models.strict:
            raise
        resolved, warnings = models.default, [f"model '{str(name)[:MAX_NAME]}' is not here"]
    display = models.display_name if resolved == models.default else resolved
    return ModelChoice(resolved), display, warnings


class Chunking(TextForm):
    """A chunking_strategy: how speech segments are found. Its fields are named as the options."""

    type: Annotated[str, one_of(("auto", "server_vad"))]
    vad_threshold: float = Field(0.5, alias="threshold", gt=0, lt=1)
    vad_speech_pad_ms: int = Field(0, alias="prefix_padding_ms", ge=0, le=MAX_PADDING)
    vad_min_silence_duration_ms: int = Field(0, alias="silence_duration_ms", ge=0, le=MAX_PADDING)

    @model_validator(mode="after")
    def _settings_are_known(self) -> Self:
        if self.model_extra or (self.type == "auto" and len(self.model_fields_set) > 1):
            settings = "threshold, prefix_padding_ms, silence_duration_ms"
            raise invalid(f"auto has no settings, and server_vad only {settings}")
        return self


def _parsed(value: object) -> object:
    """A type alone, or JSON."""
    if value in ("auto", "server_vad"):
        return {"type": value}
    if isinstance(value, str):
        try:
            return json_object(value, "chunking_strategy")
        except APIError:
            raise invalid("send auto, or a server_vad object") from None
    return value


# options that are fields of the form; None: the server's default
EXTENSIONS = option_fields(
    "channels",
    "channel_names",
    "sentences",
    "speech_only",
    "on_failure",
    "hot_word_bonus",
    "audio_track",
    "speakers",
    "min_speakers",
    "max_speakers",
    on_failure="best",  # API users do not review the texts
)


class TranscriptionForm(create_model("Extensions", __base__=UploadForm, **EXTENSIONS)):  # type: ignore[misc]
    """The fields of a request to transcribe or translate a recording."""

    model: Text | None = None
    response_format: Annotated[str, one_of(RESPONSE_FORMATS)] = "json"
    prompt: Text | None = None
    keywords: Texts = Field((), alias="keywords[]")
    language: Text | None = None
    languages: Texts = Field((), alias="languages[]")
    temperature: float = Field(0.0, ge=0, le=1)  # 0: raised when a window fails
    # some clients send one value, "segment,word"
    timestamp_granularities: Annotated[
        tuple[Annotated[str, one_of(GRANULARITIES)], ...],
        BeforeValidator(lambda values: ",".join(map(str, values)).split(",")),
    ] = Field((), alias="timestamp_granularities[]")
    include: tuple[Annotated[str, one_of(("logprobs",))], ...] = Field((), alias="include[]")
    stream: bool = False
    diarize: bool = False  # our own: speakers in every format but json
    chunking_strategy: Annotated[Chunking, BeforeValidator(_parsed)] | None = None
    known_speaker_names: Texts = Field((), alias="known_speaker_names[]")
    known_speaker_references: tuple[str, ...] = Field((), alias="known_speaker_references[]")
    hot_words: Text = ""  # one a line, as in the file of the command

    @field_validator("hot_words")
    @classmethod
    def _hot_words_are_a_list(cls, text: str) -> str:
        try:
            parse_hot_words(hot_word_lines(text), 0.0)
        except OptionError as error:
            raise invalid(str(error).removeprefix("hot_words: ")) from None
        return text

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Join the fields chunking_strategy[key] into one."""
        begin = "chunking_strategy["
        inside = [name for name in fields if name.startswith(begin) and name.endswith("]")]
        chunking = {name[len(begin) : -1]: fields.pop(name) for name in inside}
        return {"chunking_strategy": chunking, **fields} if chunking else fields

    def options(self) -> dict[str, Any]:
        """The fields as `slimwhisper.Options`."""
        chunking = self.chunking_strategy
        settings = chunking and chunking.model_dump(exclude={"type"}, exclude_unset=True)
        extensions = self.model_dump(include=set(EXTENSIONS), exclude_none=True)
        asked = self.diarize or self.response_format in WITH_SPEAKERS
        by_voice = asked and "channels" not in extensions
        options = {
            "initial_prompt": self.prompt,
            "hotwords": ", ".join(self.keywords),
            "language": None if asks_detection(self.language) else self.language,
            "languages": self.languages,
            "temperature": self.temperature,
            "token_logprobs": bool(self.include),
            "word_timestamps": "word" in self.timestamp_granularities,
            "diarize": "embedding" if by_voice else None,
            "parallel": chunking is not None,
            "hot_words": hot_word_lines(self.hot_words),
        }
        options = {name: value for name, value in options.items() if value} | (settings or {})
        return options | extensions


def read_request(form: FormData, models: Models, task: str) -> TranscriptionRequest:
    """The request of a form. task: "transcribe" or "translate".

    Raises APIError for a field that is invalid or not supported, CheckpointError for the model.
    """
    fields = check_form(TranscriptionForm, form)
    format, name = fields.response_format, fields.model
    request = TranscriptionRequest.of(fields, fields.file, format, name, models)
    request.options = {"task": task, **fields.options()}
    request.openai_model = openai_model(name) or ""
    request.granularities = fields.timestamp_granularities or request.granularities
    request.stream = fields.stream
    names, references = fields.known_speaker_names, fields.known_speaker_references
    request.references = read_references(names, references)
    _refuse_combinations(request)
    return request


def _refuse_combinations(request: TranscriptionRequest) -> None:
    """Raises APIError for fields that contradict each other."""
    format, options = request.format, request.options
    if "word" in request.granularities and format not in WITH_WORDS:
        name = "timestamp_granularities[]"
        raise refused(name, f"{name}=word needs response_format {', '.join(WITH_WORDS)}")
    if request.stream and format not in STREAMED:
        raise refused("stream", f"stream needs response_format {', '.join(STREAMED)}")
    if "token_logprobs" in options and format != "json":
        raise refused("include[]", "include[]=logprobs needs response_format=json")
    if options.get("sentences") and format in ("json", "text"):
        segments = ", ".join(("verbose_json", "diarized_json", *FILE_FORMATS))
        message = f"sentences needs a format with segments, unlike {format}; choose {segments}"
        raise refused("sentences", message)
    if "language" in options and "languages" in options:
        message = "send language or languages[], not both"
        raise refused("languages[]", message)
    if request.references and "channels" in options:
        message = "channels has a speaker for each channel already; send channel_names[] instead"
        raise refused("known_speaker_names[]", message)
    if request.references and "diarize" not in options:
        name = "known_speaker_names[]"
        raise refused(name, f"{name} needs diarize, or response_format diarized_json or rttm")
    if "diarize" in options:
        by_format = format in WITH_SPEAKERS
        name = "response_format" if by_format else "diarize"
        if options["task"] == "translate":
            message = "translations cannot be diarized; use /v1/audio/transcriptions"
            raise refused(name, message)
        if lacking := lacking_speakers(f"{name} {format}" if by_format else name):
            raise refused(name, lacking, "not_installed")
        if format == "json":
            request.warnings.append("json has no speakers; choose text or diarized_json")
