"""Requests to the API without a server: forms as a client sends them, and what is read of them."""

import asyncio
import io
from typing import Any

import httpx
import openai
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from slimwhisper.app.api.fields import read_form
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.request import TranscriptionRequest, read_request
from slimwhisper.app.service.host import Models

MODELS = Models("digits")


def form_of(*fields: tuple[str, str]) -> FormData:
    """A form with a file and these fields."""
    return FormData([("file", UploadFile(io.BytesIO(b"audio"), filename="a.wav")), *fields])


def wanted(*fields: tuple[str, str], task: str = "transcribe") -> TranscriptionRequest:
    return read_request(form_of(*fields), MODELS, task)


def wanted_by_whisper_cpp(*fields: tuple[str, str]) -> TranscriptionRequest:
    return read_inference(form_of(*fields), MODELS)


def sent_by_openai(**arguments: Any) -> FormData:
    """The form that OpenAI's client sends for these arguments, as the server parses it."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return httpx.Response(200, json={"text": ""})

    given = {"file": ("a.wav", b"audio"), "model": "whisper-1", **arguments}
    http = httpx.Client(transport=httpx.MockTransport(answer))
    with openai.OpenAI(api_key="any", http_client=http) as client:
        client.audio.transcriptions.create(**given)
    (request,) = seen

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": request.content, "more_body": False}

    headers = [(k.lower().encode(), v.encode()) for k, v in request.headers.items()]
    scope = {"type": "http", "method": "POST", "headers": headers}
    return asyncio.run(read_form(Request(scope, receive)))
