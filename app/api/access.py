"""Who may ask, and how much they may send: before anything of a request is read."""

import base64
import secrets
from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimwhisper.app.api.errors import APIError

OURS = ("/v1", "/metrics")  # the page has its own login, and its own limit
# of Gradio's, what the page has no use for: some fetch addresses for whoever asks, some keep files
UNUSED = (
    *("/gradio_api/file=http", "/gradio_api/proxy=", "/gradio_api/file/", "/gradio_api/deep_link"),
    *("/gradio_api/process_recording", "/gradio_api/vibe", "/gradio_api/undo-vibe"),
    *("/gradio_api/runs", "/gradio_api/run-history", "/gradio_api/dev/", "/monitoring"),
)


class Access:
    """ASGI middleware: keys and passwords, and the size of bodies, of the API's paths."""

    def __init__(
        self,
        app: ASGIApp,
        api_key: str | None = None,
        login: tuple[str, str] | None = None,
        most_bytes: int = 1 << 30,
    ) -> None:
        """api_key, login (user, password): either opens; both None: open to all."""
        self.app, self.most_bytes = app, most_bytes
        self._accepted = [f"Bearer {api_key}"] if api_key else []
        if login is not None:
            both = base64.b64encode(":".join(login).encode()).decode()
            self._accepted.append(f"Basic {both}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path.startswith(UNUSED):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
            return
        if scope["type"] != "http" or not path.startswith(OURS):
            await self.app(scope, receive, send)
            return
        try:
            headers = {k.lower(): v for k, v in scope["headers"]}
            self._check_key(headers.get(b"authorization", b"").decode("latin-1"))
            self._check_length(headers.get(b"content-length", b"0"))
        except APIError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _check_key(self, given: str) -> None:
        if self._accepted and not _matches(given, self._accepted):
            headers = {"WWW-Authenticate": "Bearer"}
            message = "give the server's key as 'Authorization: Bearer KEY'"
            raise APIError(401, message, "invalid_api_key", headers=headers)

    def _check_length(self, given: bytes) -> None:
        try:
            length = int(given)
        except ValueError:
            raise APIError(400, "Content-Length is not a number") from None
        if length > self.most_bytes:
            raise self._too_large()

    def _too_large(self) -> APIError:
        size = f"{self.most_bytes / 1e6:g}"
        return APIError(413, f"the file is larger than the {size} MB taken here", "too_large")

    def _counted(self, receive: Receive) -> Receive:
        """The same, until more comes than is allowed."""
        left = self.most_bytes

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return counted


def _matches(given: str, accepted: Iterable[str]) -> bool:
    """Whether a header is one of the accepted; the time it takes tells nothing."""
    found = [secrets.compare_digest(given.encode(), a.encode()) for a in accepted]
    return any(found)
