"""`/v1/realtime`: OpenAI's Realtime API, for transcription; its client secrets; and Deepgram's
websocket, `/v1/listen`.

The websocket's events are those of openai-python 3.54 (types/realtime); docs/connect/realtime.md
has the differences.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, WebSocket

from slimwhisper.app.api.access import bearer_key, refuse
from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import json_object, unsupported
from slimwhisper.app.realtime.client_secrets import ClientSecrets, read_request
from slimwhisper.app.realtime.connection import Connection
from slimwhisper.app.realtime.conversation import make_id
from slimwhisper.app.realtime.listen import ListenSocket
from slimwhisper.app.realtime.session import START, SessionConfig, session_object, update_session
from slimwhisper.app.realtime.stream_socket import GOING_AWAY, SessionEnd, StreamSocket
from slimwhisper.app.service.host import ServerHost
from slimwhisper.errors import SlimWhisperError

SUBPROTOCOLS = ("realtime", "token")  # OpenAI's, Deepgram's


class Realtime:
    """The open sessions of a server, and its client secrets."""

    def __init__(self, host: ServerHost) -> None:
        self.client_secrets = ClientSecrets()
        self._host = host
        self._open: dict[StreamSocket, asyncio.Task[Any] | None] = {}

    def __len__(self) -> int:
        """The number of open sessions."""
        return len(self._open)

    def is_secret(self, key: str) -> bool:
        """Whether a key is a client secret that has not expired."""
        return self.client_secrets.session(key) is not None

    def connect(self, websocket: WebSocket) -> StreamSocket:
        """A session of OpenAI's API. Raises APIError, SlimWhisperError."""
        return Connection(websocket, self._config(websocket), self._host)

    def listen(self, websocket: WebSocket) -> StreamSocket:
        """A session of Deepgram's API. Raises APIError, SlimWhisperError."""
        return ListenSocket(websocket, self._host)

    async def serve(self, websocket: WebSocket, make: Callable[[WebSocket], StreamSocket]) -> None:
        """Serve a session, from the request to its end."""
        try:
            connection = make(websocket)
        except (APIError, SlimWhisperError) as error:
            scope, receive, send = websocket.scope, websocket.receive, websocket.send
            await refuse(as_api_error(error), scope, receive, send)
        else:
            self._open[connection] = asyncio.current_task()
            try:
                offered = websocket.scope["subprotocols"]
                await connection.run(next((p for p in SUBPROTOCOLS if p in offered), None))
            finally:
                del self._open[connection]

    async def shutdown(self) -> None:
        """End all sessions: transcribe the remaining audio, then send an error and close."""
        message = "the server is shutting down; connect again in a minute"
        error = APIError(503, message, "stopping")
        tasks = [task for task in self._open.values() if task is not None]
        for connection in self._open:
            connection.end(SessionEnd(GOING_AWAY, error, last_texts=True))
        if tasks:
            await asyncio.wait(tasks)

    def _config(self, websocket: WebSocket) -> SessionConfig:
        """The configuration of a session at its start. Raises APIError."""
        config = self.client_secrets.session(bearer_key(websocket.scope)) or START
        query = websocket.query_params
        if query.get("intent", "transcription") != "transcription":
            raise unsupported("intent", "this server only transcribes; send intent=transcription")
        if "call_id" in query:
            raise unsupported("call_id", "this server has no calls; leave call_id out")
        input_fields = {"input": {"transcription": {"model": query.get("model")}}}
        session = {"type": "transcription", "audio": input_fields}
        return update_session(config, session)[0] if query.get("model") else config


def make_realtime_router(realtime: Realtime) -> APIRouter:
    """The routes to be mounted at /v1."""
    router = APIRouter()

    @router.websocket("/realtime")
    async def connect(websocket: WebSocket) -> None:
        """Transcribe a live stream, as OpenAI's Realtime API does."""
        await realtime.serve(websocket, realtime.connect)

    @router.websocket("/listen")
    async def listen(websocket: WebSocket) -> None:
        """Transcribe a live stream, as Deepgram's API does."""
        await realtime.serve(websocket, realtime.listen)

    @router.post("/realtime/client_secrets")
    async def client_secrets(request: Request) -> dict[str, Any]:
        """Make a key with which a client may open a realtime session for a short time."""
        config, seconds, unknown = read_request(await _json(request))
        value, expires_at = realtime.client_secrets.issue(config, seconds)
        session = session_object(config, make_id("sess"), unknown=unknown)
        return {"value": value, "expires_at": expires_at, "session": session}

    return router


async def _json(request: Request) -> dict[str, Any]:
    """The body; an empty one is {}. Raises APIError.

    Pages of other sites can send plain text without a preflight request, but not JSON.
    """
    body = await request.body()
    if not body:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise APIError(415, "send application/json", "invalid_json")
    return json_object(body, "the body")
