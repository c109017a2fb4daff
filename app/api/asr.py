"""whisper-asr-webservice's API: /asr and /detect-language, as Bazarr, Speakr and others call them.

The fields of a request are in its query, as in version 1.9 of the service (app/webservice.py);
"enable_diarization", "hotwords" and "model" are WhisperX's, which Speakr sends.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, create_model
from starlette.datastructures import FormData

from slimwhisper.app.api.fields import (
    Text,
    TextForm,
    Upload,
    check_form,
    one_of,
    option_fields,
    read_form,
)
from slimwhisper.app.api.recordings import wav_of
from slimwhisper.app.api.request import TranscriptionRequest, lacking_speakers
from slimwhisper.app.api.respond import FinishedTranscript, PendingTranscription, respond
from slimwhisper.app.service.host import Models, ServerHost
from slimwhisper.longform.recording import Recording

OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")
BOUNDS = option_fields(
    "language", "task", "initial_prompt", "hotwords", "min_speakers", "max_speakers"
)


class AsrForm(create_model("AsrOptions", __base__=TextForm, **BOUNDS)):  # type: ignore[misc]
    """The fields of the query and of the form."""

    audio_file: Upload = Field(None, validate_default=True)
    encode: bool = True  # false: the file is PCM without a header
    output: Annotated[str, one_of(OUTPUTS)] = "txt"
    vad_filter: bool = False
    word_timestamps: bool = False
    diarize: bool = False
    enable_diarization: bool = False
    model: Text | None = None
    video_file: Text | None = None  # the name of a film, in place of the file's


def read_asr(form: FormData, models: Models) -> TranscriptionRequest:
    """The request of a form. Raises APIError, CheckpointError."""
    fields = check_form(AsrForm, form)
    request = TranscriptionRequest.of(
        fields, fields.audio_file, fields.output, fields.model, models
    )
    own = {*BOUNDS, "vad_filter", "word_timestamps"}
    options: dict[str, Any] = fields.model_dump(include=own, exclude_defaults=True)
    task = options.setdefault("task", "transcribe")
    if fields.diarize or fields.enable_diarization:
        if lacking := lacking_speakers("diarize"):
            request.warnings.append(lacking)
        elif task == "translate":
            request.warnings.append("translations have no speakers")
        else:
            options["diarize"] = "embedding"
    elif {"min_speakers", "max_speakers"} & options.keys():
        request.warnings.append("numbers of speakers have no effect without diarize")
    if "diarize" not in options:
        options = {name: value for name, value in options.items() if "speakers" not in name}
    request.options, request.accept = options, "text/plain"
    request.convert = None if fields.encode else wav_of
    request.render = as_json if fields.output == "json" else None
    return request


def as_json(finished: FinishedTranscript) -> dict[str, Any]:
    """A transcript as the service writes it; words only if their times were asked for."""
    rows = finished.transcript.segment_rows()
    if not finished.request.options.get("word_timestamps"):
        rows = [{name: value for name, value in row.items() if name != "words"} for row in rows]
    language = finished.transcript.language
    return {"text": finished.transcript.text, "segments": rows, "language": language}


async def read_query(request: Request) -> FormData:
    """The form in a request's body, and the fields of its query. Raises APIError."""
    form = await read_form(request)
    return FormData([*request.query_params.multi_items(), *form.multi_items()])


async def language_response(pending: PendingTranscription) -> Response:
    """The language, as soon as it is known; the rest of the recording is not decoded."""
    from slimwhisper.tokens.encoding import LANGUAGES

    recording = pending.job.recording
    assert isinstance(recording, Recording)
    session = recording.sessions[0]
    while session.language is None:
        await pending.next()
    body = {
        "detected_language": LANGUAGES[session.language],
        "language_code": session.language,
        "confidence": session.language_probs.get(session.language, 1.0),
    }
    return JSONResponse(body, headers=pending.transcription.headers())


def add_asr(root: APIRouter, host: ServerHost) -> None:
    """The routes of the service."""

    @root.post("/asr")
    async def asr(request: Request) -> Response:
        """Transcribe a recording, as whisper-asr-webservice does."""
        return await respond(host, request, read_asr, read_query)

    @root.post("/detect-language")
    async def detect_language(request: Request) -> Response:
        """Detect the language of a recording."""
        return await respond(host, request, read_asr, read_query, language_response)

    @root.get("/asr")
    @root.get("/detect-language")
    async def wrong_method() -> str:
        """Say how to send a recording."""
        return "send the recording by POST, in the field audio_file of a form (multipart/form-data)"
