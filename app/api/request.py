"""What a request for a transcript asks for, and its answer in the format that it asks for."""

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
FIELDS = 50  # of a form, at most
LONGEST_NAME = 200


async def read_form(request: Request) -> FormData:
    """The form of a request. Raises APIError."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise APIError(415, "give a form (multipart/form-data) with an audio file in 'file'")
    try:
        return await request.form(max_files=1, max_fields=FIELDS)
    except StarletteHTTPException as error:
        raise APIError(error.status_code, f"the form cannot be read: {error.detail}") from error


def display_name(given: str | None) -> str:
    """A client's name of a file, safe to show and to look at for its suffix."""
    name = PurePath((given or "").replace("\\", "/")).name
    printable = "".join(c for c in name if c.isprintable())
    return printable[-LONGEST_NAME:] or "audio"


class Asked:
    """A form, checked."""

    def __init__(self, form: FormData, task: str, models: Models) -> None:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise APIError(400, "file: give an audio file in the form's field 'file'", None, "file")
        self.upload, self.task = upload, task
        self.format = self._choice(form, "response_format", RESPONSE_FORMATS) or "json"
        granularities = [str(g) for g in form.getlist("timestamp_granularities[]")]
        for name in granularities:
            if name not in GRANULARITIES:
                raise self._wrong("timestamp_granularities[]", name, GRANULARITIES)
        if granularities and self.format != "verbose_json":
            message = "timestamp_granularities[] needs response_format=verbose_json"
            raise APIError(400, message, None, "timestamp_granularities[]")
        self.granularities = granularities or ["segment"]
        self.stream = self._choice(form, "stream", ("true", "false", "True", "False")) in (
            *("true", "True"),
        )
        if self.stream and self.format not in ("json", "text"):
            raise APIError(400, "stream needs response_format json or text", None, "stream")
        try:
            self.model = ModelChoice(models.resolve(self._text(form, "model")))
        except CheckpointError as error:
            raise as_api_error(error) from error
        self.options: dict[str, Any] = {
            "task": task,
            "language": self._text(form, "language"),
            "initial_prompt": self._text(form, "prompt"),
            "word_timestamps": "word" in self.granularities,
        }
        temperature = self._text(form, "temperature")
        if temperature is not None:
            try:
                value = float(temperature)
            except ValueError:
                value = -1.0
            if not 0 <= value <= 1:
                raise APIError(
                    400, f"temperature {temperature!r} is not between 0 and 1", None, "temperature"
                )
            if value > 0:  # 0, as OpenAI has it: raised where the text looks wrong
                self.options["temperature"] = value

    def response(self, finished: Finished) -> Response:
        """The answer in the format asked for."""
        transcript = finished.transcript
        match self.format:
            case "text":
                return PlainTextResponse(transcript.text.strip() + "\n")
            case "srt" | "vtt":
                file = io.StringIO()
                write_transcript(transcript, self.format, file)
                kind = FORMATS[self.format].media_type
                return Response(file.getvalue(), media_type=f"{kind}; charset=utf-8")
            case "verbose_json":
                return JSONResponse(self._verbose(transcript, finished.seconds))
            case _:
                return JSONResponse(
                    {"text": transcript.text.strip(), "usage": usage(finished.seconds)}
                )

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

    @staticmethod
    def _text(form: FormData, name: str) -> str | None:
        value = form.get(name)
        if isinstance(value, UploadFile):
            raise APIError(400, f"{name}: is a file; give text", None, name)
        return value or None

    def _choice(self, form: FormData, name: str, known: tuple[str, ...]) -> str | None:
        value = self._text(form, name)
        if value is not None and value not in known:
            raise self._wrong(name, value, known)
        return value

    @staticmethod
    def _wrong(name: str, value: str, known: tuple[str, ...]) -> APIError:
        message = f"{name} {value[:100]!r} is not one of {', '.join(known)}"
        return APIError(400, message, None, name)


def usage(seconds: float) -> dict[str, Any]:
    """What OpenAI's answers say was used."""
    return {"type": "duration", "seconds": round(seconds)}
