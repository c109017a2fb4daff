"""`/v1/realtime`: OpenAI's Realtime API, for transcription; its client secrets; and Deepgram's
`/v1/listen`.

The websocket's events are those of openai-python 3.54 (types/realtime); docs/connect/realtime.md
has the differences. Client secrets are short-lived keys for browsers, which permit realtime
sessions only. A secret contains its session's configuration and a signature, so the server stores
none. The signing key is generated when a server starts, so secrets do not outlive the server.
"""

import asyncio
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, WebSocket
from pydantic import Field

from slimwhisper.app.api.access import SECRET, bearer_key, refuse
from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.fields import (
    NULL_IS_DEFAULT,
    WHOLE,
    LenientModel,
    check,
    json_object,
    refused,
    unsupported,
)
from slimwhisper.app.realtime.connection import Connection, make_id
from slimwhisper.app.realtime.listen import ListenSocket, add_listen
from slimwhisper.app.realtime.session import START, SessionConfig, session_object, update_session
from slimwhisper.app.realtime.stream_socket import GOING_AWAY, SessionEnd, StreamSocket
from slimwhisper.app.service.host import ServerHost
from slimwhisper.errors import SlimWhisperError

# -- client secrets ------------------------------------------------------------------------------

DEFAULT_SECONDS, MIN_SECONDS, MAX_SECONDS = 600, 10, 7200
MAX_LENGTH = 6000  # characters: browsers send it in a header's line, of which 8 kB are read


class Content(LenientModel):
    """The content of a secret, which is signed, not encrypted."""

    end: float  # when it expires, in seconds of the clock
    session: SessionConfig


class ClientSecrets:
    """Issues secrets, and verifies them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock, self._key = clock, secrets.token_bytes(32)

    def issue(
        self, config: SessionConfig = START, seconds: float = DEFAULT_SECONDS
    ) -> tuple[str, int]:
        """A new secret, and when it expires, in seconds since the epoch.

        config: of its sessions at their start. Raises APIError if that is too long.
        """
        content = Content(end=self._clock() + seconds, session=config).model_dump_json()
        text = urlsafe_b64encode(content.encode()).decode().rstrip("=")
        value = f"{SECRET}{text}.{self._signature(text)}"
        if len(value) > MAX_LENGTH:
            reason = "the session is too long for a client secret; send its prompt in an update"
            raise refused("session", reason)
        return value, int(time.time() + seconds)

    def session(self, value: str) -> SessionConfig | None:
        """The session's configuration; None if the secret is invalid or has expired."""
        text, _, signature = value.removeprefix(SECRET).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        content = Content.model_validate_json(urlsafe_b64decode(f"{text}=="))
        return content.session if content.end > self._clock() else None

    def _signature(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()


class ExpiresAfter(LenientModel):
    """The lifetime of a secret."""

    anchor: Annotated[Literal["created_at"], NULL_IS_DEFAULT] = "created_at"
    seconds: Annotated[int, WHOLE, NULL_IS_DEFAULT] = Field(
        default=DEFAULT_SECONDS, ge=MIN_SECONDS, le=MAX_SECONDS
    )


class SecretRequest(LenientModel):
    """The body of `POST /v1/realtime/client_secrets`."""

    expires_after: Annotated[ExpiresAfter, NULL_IS_DEFAULT] = ExpiresAfter()
    session: SessionConfig = START


def read_request(data: dict[str, Any]) -> tuple[SessionConfig, int, list[str]]:
    """The request's session, seconds, and names of unknown fields. Raises APIError."""
    body = check(SecretRequest, data)
    return body.session, body.expires_after.seconds, body.unknown(data, "")


# -- sessions ------------------------------------------------------------------------------------

SUBPROTOCOLS = ("realtime", "token")  # OpenAI's, Deepgram's


class Realtime:
    """The open sessions of a server, and its client secrets."""

    def __init__(self, host: ServerHost) -> None:
        self.client_secrets = ClientSecrets()
        self.host = host
        self.open: dict[StreamSocket, asyncio.Task[Any] | None] = {}  # sessions

    def is_secret(self, key: str) -> bool:
        """Whether a key is a client secret that has not expired."""
        return self.client_secrets.session(key) is not None

    def connect(self, websocket: WebSocket) -> StreamSocket:
        """A session of OpenAI's API. Raises APIError, SlimWhisperError."""
        config = self.client_secrets.session(bearer_key(websocket.scope)) or START
        query = websocket.query_params
        if query.get("intent", "transcription") != "transcription":
            raise unsupported("intent", "this server only transcribes; send intent=transcription")
        if "call_id" in query:
            raise unsupported("call_id", "this server has no calls; leave call_id out")
        if model := query.get("model"):
            sound = {"input": {"transcription": {"model": model}}}
            config, _ = update_session(config, {"type": "transcription", "audio": sound})
        return Connection(websocket, config, self.host)

    async def serve(self, websocket: WebSocket, make: Callable[[WebSocket], StreamSocket]) -> None:
        """Serve a session, from the request to its end."""
        try:
            connection = make(websocket)
        except (APIError, SlimWhisperError) as error:
            scope, receive, send = websocket.scope, websocket.receive, websocket.send
            await refuse(as_api_error(error), scope, receive, send)
        else:
            self.open[connection] = asyncio.current_task()
            try:
                offered = websocket.scope["subprotocols"]
                await connection.run(next((p for p in SUBPROTOCOLS if p in offered), None))
            finally:
                del self.open[connection]

    async def shutdown(self) -> None:
        """End all sessions: transcribe the remaining audio, then send an error and close."""
        message = "the server is shutting down; connect again in a minute"
        error = APIError(503, message, "stopping")
        tasks = [task for task in self.open.values() if task is not None]
        for connection in self.open:
            connection.end(SessionEnd(GOING_AWAY, error, last_texts=True))
        if tasks:
            await asyncio.wait(tasks)


def make_realtime_router(realtime: Realtime) -> APIRouter:
    """The routes to be mounted at /v1."""
    router, host = APIRouter(), realtime.host
    add_listen(router, host)

    @router.websocket("/realtime")
    async def connect(websocket: WebSocket) -> None:
        """Transcribe a live stream, as OpenAI's Realtime API does."""
        await realtime.serve(websocket, realtime.connect)

    @router.websocket("/listen")
    async def listen(websocket: WebSocket) -> None:
        """Transcribe a live stream, as Deepgram's API does."""
        await realtime.serve(websocket, partial(ListenSocket, host=host))

    @router.post("/realtime/client_secrets")
    async def client_secrets(request: Request) -> dict[str, Any]:
        """Make a key with which a client may open a realtime session for a short time."""
        config, seconds, unknown = read_request(await _json(request))
        value, expires_at = realtime.client_secrets.issue(config, seconds)
        session = session_object(config, host.models, make_id("sess"), unknown=unknown)
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
