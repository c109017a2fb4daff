"""A transcription request: its HTTP form, checked, and its response in the format it names."""

import io
from pathlib import PurePath
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.service.jobs import Finished, ModelChoice
from slimwhisper.app.service.models import Models
from slimwhisper.errors import CheckpointError
from slimwhisper.types import Transcript
from slimwhisper.writers import FORMATS, write_transcript

RESPONSE_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")
BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
MAX_FIELDS = 50  # of a form
MAX_NAME_LENGTH = 200  # characters of a file's name


async def read_form(request: Request) -> FormData:
    """The form in a request's body. Raises APIError."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise APIError(415, "send a form (multipart/form-data) with an audio file in 'file'")
    try:
        return await request.form(max_files=1, max_fields=MAX_FIELDS)
    except StarletteHTTPException as error:
        raise APIError(error.status_code, f"the form cannot be read: {error.detail}") from error


def display_name(given: str | None) -> str:
    """A file's name as the client sent it, made safe to show: no folders, printable, short."""
    name = PurePath((given or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-MAX_NAME_LENGTH:] or "audio"


class TranscriptionRequest:
    """A checked form: the file, the model, the options and the response's format."""

    def __init__(self, form: FormData, task: str, models: Models) -> None:
        """task: "transcribe" or "translate". Raises APIError for a field that cannot be used."""
        self.upload, self.task = _upload(form), task
        self.format = _choice(form, "response_format", RESPONSE_FORMATS) or "json"
        self.granularities = self._granularities(form)
        self.stream = BOOLEANS[_choice(form, "stream", tuple(BOOLEANS)) or "false"]
        if self.stream and self.format not in ("json", "text"):
            raise APIError(400, "stream needs response_format json or text", None, "stream")
        try:
            self.model = ModelChoice(models.resolve(_text(form, "model")))
        except CheckpointError as error:
            raise as_api_error(error) from error
        self.options: dict[str, Any] = {
            "task": task,
            "initial_prompt": _text(form, "prompt"),
            "word_timestamps": "word" in self.granularities,
        }
        if (language := _text(form, "language")) is not None:
            self.options["language"] = language
        temperature = _temperature(form)
        if temperature > 0:  # 0 means OpenAI's default: raised when a text looks wrong
            self.options["temperature"] = temperature

    def response(self, finished: Finished) -> Response:
        """The transcript in the response's format."""
        transcript = finished.transcript
        match self.format:
            case "text":
                return PlainTextResponse(transcript.text.strip() + "\n")
            case "srt" | "vtt":
                file = io.StringIO()
                write_transcript(transcript, self.format, file)
                media_type = FORMATS[self.format].media_type
                return Response(file.getvalue(), media_type=f"{media_type}; charset=utf-8")
            case "verbose_json":
                return JSONResponse(self._verbose(transcript, finished.seconds))
            case _:
                return JSONResponse(
                    {"text": transcript.text.strip(), "usage": usage(finished.seconds)}
                )

    def _granularities(self, form: FormData) -> list[str]:
        field = "timestamp_granularities[]"
        found = [str(value) for value in form.getlist(field)]
        for value in found:
            if value not in GRANULARITIES:
                raise _not_one_of(field, value, GRANULARITIES)
        if found and self.format != "verbose_json":
            raise APIError(400, f"{field} needs response_format=verbose_json", None, field)
        return found or ["segment"]

    def _verbose(self, transcript: Transcript, seconds: float) -> dict[str, Any]:
        from whisper.tokenizer import LANGUAGES

        found: dict[str, Any] = {
            "task": self.task,
            "language": LANGUAGES.get(transcript.language, transcript.language),
            "duration": round(seconds, 3),
            "text": transcript.text.strip(),
        }
        if "segment" in self.granularities:
            segments = transcript.as_dict()["segments"]
            found["segments"] = [{k: v for k, v in s.items() if k != "words"} for s in segments]
        if "word" in self.granularities:
            words = [word for s in transcript.segments for word in s.words or ()]
            found["words"] = [
                {"word": w.word.strip(), "start": w.start, "end": w.end} for w in words
            ]
        found["usage"] = usage(seconds)
        return found


def usage(seconds: float) -> dict[str, Any]:
    """OpenAI's "usage" of a response: the length of the audio in whole seconds."""
    return {"type": "duration", "seconds": round(seconds)}


def _upload(form: FormData) -> UploadFile:
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise APIError(400, "file: send an audio file in the form's field 'file'", None, "file")
    return upload


def _text(form: FormData, name: str) -> str | None:
    """A text field; None if it is missing or empty."""
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise APIError(400, f"{name} must be text, not a file", None, name)
    return value or None


def _choice(form: FormData, name: str, known: tuple[str, ...]) -> str | None:
    """A text field with one of the values in `known`; None if it is missing or empty."""
    value = _text(form, name)
    if value is not None and value not in known:
        raise _not_one_of(name, value, known)
    return value


def _temperature(form: FormData) -> float:
    """The field "temperature", 0 to 1; 0 if it is missing."""
    text = _text(form, "temperature") or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        message = f"temperature {text[:100]!r} is not between 0 and 1"
        raise APIError(400, message, None, "temperature")
    return value


def _not_one_of(name: str, value: str, known: tuple[str, ...]) -> APIError:
    message = f"{name} {value[:100]!r} is not one of {', '.join(known)}"
    return APIError(400, message, None, name)
