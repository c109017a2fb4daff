"""Access control: keys, and the size of bodies, before anything of a request is read.

Only what is known to be open is open:

    http        /health; the page's paths, if there is a page (it has its own login).
                Every other path needs the key.
    websocket   refused, unless the path is in WEBSOCKETS; then it needs the key, or a client
                secret. The page of another site needs one of them even if no key is set: a
                browser lets it connect, and sends a saved login along.
    lifespan    the server's own start and end: passed on
    any other   an error
"""

import base64
import re
import secrets
from collections.abc import Callable, Iterable
from urllib.parse import unquote, urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimwhisper.app.api.errors import APIError

OPEN = "/health"
API = ("/v1", "/inference", "/metrics")  # need the key; with a page, all other paths are the page's
WEBSOCKETS = frozenset({"/v1/realtime"})  # paths that serve a websocket
KEY_PROTOCOL = "openai-insecure-api-key."  # and a key: a websocket's subprotocol, in browsers
SECRET = "ek_"  # how a client secret begins
POLICY_VIOLATION = 1008  # a websocket's close code; before it is accepted, HTTP's 403
# Gradio's routes that the page does not need: some fetch any URL, some keep files. In lower case.
UNUSED = (
    *("/gradio_api/file=http", "/gradio_api/proxy=", "/gradio_api/file/", "/gradio_api/deep_link"),
    *("/gradio_api/process_recording", "/gradio_api/vibe", "/gradio_api/undo-vibe"),
    *("/gradio_api/runs", "/gradio_api/run-history", "/gradio_api/dev/", "/monitoring"),
)


class Access:
    """ASGI middleware: checks keys, passwords and the size of bodies."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        page: bool,
        api_key: str | None = None,
        login: tuple[str, str] | None = None,
        max_bytes: int = 1 << 30,
        is_secret: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """page: whether `app` has the page, which checks its own users.

        api_key, login (user, password): either gives access; both None: open to everyone.
        max_bytes: of a body. is_secret: whether a client secret is valid now.
        """
        self._is_secret = is_secret
        self.app, self.page, self.max_bytes = app, page, max_bytes
        self._accepted = [f"Bearer {api_key}"] if api_key else []
        if login is not None:
            pair = base64.b64encode(":".join(login).encode()).decode()
            self._accepted.append(f"Basic {pair}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self.app(scope, receive, send)
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case kind:
                raise RuntimeError(f"ASGI scopes of type {kind!r} are not served")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        spellings = (path, _folded(path))
        if any(spelling.startswith(UNUSED) for spelling in spellings):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
            return
        of_api = any(spelling.startswith(API) for spelling in spellings)
        if path == OPEN or (self.page and not of_api):
            await self.app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            self._check_length(_header(scope, b"content-length") or "0")
        except APIError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if route_path(scope) not in WEBSOCKETS:
                raise APIError(403, "no websocket is served here")
            self._check_websocket(scope)
        except APIError as error:
            await refuse_websocket(error, scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check_websocket(self, scope: Scope) -> None:
        key = given_key(scope)
        if key.startswith(SECRET):
            if not self._is_secret(key):
                message = "the client secret is unknown or has expired; make another"
                raise APIError(401, message, "invalid_client_secret")
        elif key and _matches(f"Bearer {key}", self._accepted):
            return
        elif _is_foreign(scope):
            raise APIError(403, "a page of another site needs a client secret, or the key")
        else:
            self._check_key(scope)

    def _check_key(self, scope: Scope) -> None:
        if self._accepted and not _matches(_header(scope, b"authorization"), self._accepted):
            headers = {"WWW-Authenticate": "Bearer"}
            message = "give the server's key as 'Authorization: Bearer KEY'"
            raise APIError(401, message, "invalid_api_key", headers=headers)

    def _check_length(self, given: str) -> None:
        try:
            length = int(given)
        except ValueError:
            raise APIError(400, "Content-Length is not a number") from None
        if length > self.max_bytes:
            raise self._too_large()

    def _too_large(self) -> APIError:
        size = f"{self.max_bytes / 1e6:g}"
        return APIError(413, f"the file is larger than the limit of {size} MB", "too_large")

    def _counted(self, receive: Receive) -> Receive:
        """`receive`, which fails once more than `max_bytes` have arrived."""
        left = self.max_bytes

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return counted


async def refuse_websocket(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a websocket that was not accepted: by the error's status where the server can."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await error.response()(scope, receive, send)
    else:
        reason = str(error)
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


def given_key(scope: Scope) -> str:
    """The key of `Authorization: Bearer KEY`, or of a websocket's subprotocol; "" if there is none.

    Not a key of basic authentication, which a browser sends by itself.
    """
    kind, _, key = _header(scope, b"authorization").partition(" ")
    if kind == "Bearer":
        return key
    named = [p for p in scope.get("subprotocols", ()) if p.startswith(KEY_PROTOCOL)]
    return named[0].removeprefix(KEY_PROTOCOL) if named else ""


def _is_foreign(scope: Scope) -> bool:
    """Whether a browser connects for the page of another site. Other programs send no Origin."""
    origin = _header(scope, b"origin")
    return bool(origin) and urlsplit(origin).netloc.lower() != _header(scope, b"host").lower()


def route_path(scope: Scope) -> str:
    """The path without `root_path`, exactly as Starlette's router takes it."""
    path: str = scope.get("path", "")
    root: str = scope.get("root_path", "")
    rest = path.removeprefix(root)
    return rest if path.startswith(root) and rest[:1] in ("", "/") else path


def _folded(path: str) -> str:
    """One spelling for paths that a lenient router could confuse: //v1, /V1, /%76%31."""
    return re.sub("/{2,}", "/", unquote(path)).lower()


def _header(scope: Scope, name: bytes) -> str:
    """A header's value, the last one if it is repeated; "" if it is missing."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return values[-1].decode("latin-1") if values else ""


def _matches(given: str, accepted: Iterable[str]) -> bool:
    """Whether `given` is one of `accepted`, compared in constant time."""
    found = [secrets.compare_digest(given.encode(), a.encode()) for a in accepted]
    return any(found)
