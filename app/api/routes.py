"""The addresses of the HTTP APIs: OpenAI's /v1/audio/transcriptions, /v1/audio/translations and
/v1/models; whisper.cpp's /inference; whisper-asr-webservice's /asr.

Requests and responses follow OpenAI's reference (platform.openai.com/docs/api-reference/audio), so
its clients work unchanged. The other fields of `slimwhisper.Options` are not part of the API; use
the command line or the page for them.
"""

import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import FormData

from slimwhisper.app.api.asr import add_asr
from slimwhisper.app.api.background import Background
from slimwhisper.app.api.inference import read_inference
from slimwhisper.app.api.request import TranscriptionRequest, read_request
from slimwhisper.app.api.respond import respond
from slimwhisper.app.service.host import Models, ServerHost

NO_RESULTS = "respond-async was ignored: start the server with --results DIR"
AZURE = "/openai/deployments/{name}"  # before the paths of Azure's clients


def make_routers(host: ServerHost) -> tuple[APIRouter, APIRouter, Background | None]:
    """The routes to be mounted at /v1, those at the root, and the jobs in the background."""
    models, router, root = host.models, APIRouter(), APIRouter()

    @router.head("/models", include_in_schema=False)
    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        """List the models that this server can use."""
        return {"object": "list", "data": [_model(name) for name in models.installed()]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        """Describe one model."""
        if not name:
            return await list_models()
        return _model(models.display_name if models.resolve(name) == models.default else name)

    def _model(name: str) -> dict[str, Any]:
        made = {"id": name, "object": "model", "created": 0, "owned_by": "slimwhisper"}
        return {**made, "aliases": models.aliases(name)}

    background = Background(host) if host.settings.results else None

    async def answer(request: Request, task: str) -> Response:
        wishes = re.split("[,;]", ",".join(request.headers.getlist("prefer")).lower())
        later = "respond-async" in map(str.strip, wishes)
        if background and later:
            return await background.accept(request, task)

        def read_now(form: FormData, models: Models) -> TranscriptionRequest:
            transcription = read_request(form, models, task)
            if later:
                transcription.warnings.append(NO_RESULTS)
            return transcription

        return await respond(host, request, read_now)

    @root.post("/audio/transcriptions")
    @root.post(f"{AZURE}/audio/transcriptions")
    @router.post("/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        """Transcribe a recording in the language that is spoken."""
        return await answer(request, "transcribe")

    @root.post("/audio/translations")
    @root.post(f"{AZURE}/audio/translations")
    @router.post("/audio/translations")
    async def translations(request: Request) -> Response:
        """Transcribe a recording and translate it into English."""
        return await answer(request, "translate")

    @root.post("/inference")
    async def inference(request: Request) -> Response:
        """Transcribe a recording, as the server of whisper.cpp does."""
        return await respond(host, request, read_inference)

    add_asr(root, host)
    if background:
        job = "/audio/transcriptions/{name}"
        router.add_api_route(job, background.state, methods=["HEAD"], include_in_schema=False)
        router.add_api_route(job, background.state, methods=["GET"])
        router.add_api_route(job, background.delete, methods=["DELETE"], status_code=204)
    return router, root, background
