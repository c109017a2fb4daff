"""Requests to the API without a server: forms as a client sends them, and what is read of them."""

import io
from typing import Any

import openai
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from slimwhisper.app.api.fields import read_form
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.request import TranscriptionRequest, read_request
from slimwhisper.app.service.host import Models

MODELS = Models("digits")


def form_of(*fields: tuple[str, str], file: str = "file") -> FormData:
    """A form with a file and these fields."""
    return FormData([(file, UploadFile(io.BytesIO(b"audio"), filename="a.wav")), *fields])


def wanted(*fields: tuple[str, str], task: str = "transcribe") -> TranscriptionRequest:
    return read_request(form_of(*fields), MODELS, task)


def wanted_by_whisper_cpp(*fields: tuple[str, str]) -> TranscriptionRequest:
    return read_inference(form_of(*fields), MODELS)


def sent_by_openai(**arguments: Any) -> FormData:
    """The form that OpenAI's client sends for these arguments, as the server parses it."""
    forms: list[FormData] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        forms.append(await read_form(Request(scope, receive)))
        await JSONResponse({"text": ""})(scope, receive, send)

    given = {"file": ("a.wav", b"audio"), "model": "whisper-1", **arguments}
    with openai.OpenAI(api_key="any", http_client=TestClient(app)) as client:
        client.audio.transcriptions.create(**given)
    return forms[0]
