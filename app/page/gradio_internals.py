"""All that the page uses of Gradio without a promise in Gradio's documentation.

Gradio has no documented way to bound the uploads of all users together, to give a login's cookie to
one site only, to refuse addresses, to keep tracebacks out of the log, and to end open pages at
shutdown.
"""

import secrets
from typing import Any

import gradio as gr
from fastapi import FastAPI, Request
from fastapi.responses import Response
from gradio import processing_utils
from gradio.route_utils import FnIndexInferError as NoSuchFunction
from gradio.route_utils import upload_fn as read_upload
from gradio.routes import App
from gradio.routes import file_upload_statuses as progress_of_uploads
from starlette.routing import Mount

__all__ = ["Blocks", "Gradio", "NoSuchFunction", "progress_of_uploads", "read_upload"]

MAX_USERS = 10_000  # who are logged in
FETCHING = ("async_ssrf_protected_get", "async_ssrf_protected_download")


class Blocks(gr.Blocks):
    """Gradio's, which logs no traceback of arguments that it cannot read."""

    async def preprocess_data(self, *args: Any, **options: Any) -> Any:
        """The arguments, as the handlers take them. Raises gr.Error."""
        try:
            return await super().preprocess_data(*args, **options)
        except Exception as error:
            said = error.message if isinstance(error, gr.Error) else "they do not fit the function"
            raise gr.Error(f"The arguments: {said[:300]}", print_exception=False) from None


class Gradio:
    """Gradio's app, taken out of a server's routes, of which it was the last."""

    def __init__(self, server: FastAPI) -> None:
        mounted = server.routes.pop()
        assert isinstance(mounted, Mount) and isinstance(mounted.app, App)
        self.route, self.app = mounted, mounted.app
        self.app.get_blocks().has_launched = True  # else it would take files that were not uploaded
        refuse_addresses()

    def signed_in(self, request: Request) -> bool:
        """Whether a request comes from somebody who may use the page. Reads its headers only."""
        names = [self._cookie(https) for https in (True, False)]
        return self.app.auth is None or any(
            request.cookies.get(name) in self.app.tokens for name in names
        )

    def sign_in(self, user: str, request: Request, response: Response) -> None:
        """Give a user a cookie for this site only; over HTTPS, one for HTTPS only."""
        users = self.app.tokens
        while len(users) >= MAX_USERS:
            del users[next(iter(users))]  # the oldest
        token = secrets.token_urlsafe(16)
        users[token] = user
        # behind a proxy, only the browser's Origin may tell
        https = "https" in (request.url.scheme, request.headers.get("origin", "").split(":")[0])
        response.set_cookie(self._cookie(https), token, secure=https, httponly=True, samesite="lax")

    def _cookie(self, https: bool) -> str:
        """The name of the cookie with the token."""
        return f"access-token-{'' if https else 'unsecure-'}{self.app.cookie_id}"

    def forget_files(self) -> None:
        """Empty the notes of every file that Gradio has seen."""
        for names in self.app.get_blocks().temp_file_sets:
            names.clear()

    def disconnect(self) -> None:
        """End the streams of all open pages."""
        self.app.stop_event.set()


def refuse_addresses() -> None:
    """Make Gradio's functions that fetch addresses refuse them all, in this process."""

    async def refuse(*_: object, **__: object) -> Any:
        raise gr.Error("Send a file, not an address.", print_exception=False)

    for name in FETCHING:
        assert hasattr(processing_utils, name), f"Gradio {gr.__version__} has no {name}"
        setattr(processing_utils, name, refuse)
