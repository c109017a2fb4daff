"""Collects the undocumented parts of Gradio that the page uses.

Gradio has no documented way to limit the total size of uploads, to restrict a login's cookie to one
site, to refuse addresses, to keep tracebacks out of the log, and to end open pages at shutdown.
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

MAX_USERS = 10_000  # logged-in users
MAX_SESSIONS = 250  # open pages whose state is kept, of 0.1 MB; Gradio makes that of others anew
FETCH_FUNCTIONS = ("async_ssrf_protected_get", "async_ssrf_protected_download")


class Blocks(gr.Blocks):
    """Gradio's Blocks, without tracebacks in the log for invalid arguments."""

    async def preprocess_data(self, *args: Any, **options: Any) -> Any:
        """The arguments for the handlers. Raises gr.Error."""
        try:
            return await super().preprocess_data(*args, **options)
        except Exception as error:
            text = error.message if isinstance(error, gr.Error) else "they do not fit the function"
            raise gr.Error(f"The arguments: {text[:300]}", print_exception=False) from None


class Gradio:
    """Gradio's app, which is removed from a server's routes, where it must be the last."""

    def __init__(self, server: FastAPI) -> None:
        mount = server.routes.pop()
        assert isinstance(mount, Mount) and isinstance(mount.app, App)
        self.route, self.app = mount, mount.app
        self.app.state_holder.capacity = MAX_SESSIONS
        self.app.get_blocks().has_launched = True  # else it accepts files that were not uploaded
        refuse_addresses()

    def signed_in(self, request: Request) -> bool:
        """Whether a request comes from a user of the page. Reads its headers only."""
        names = [request.cookies.get(self._cookie(https)) for https in (True, False)]
        return self.app.auth is None or any(name in self.app.tokens for name in names)

    def sign_in(self, user: str, request: Request, response: Response) -> None:
        """Set a user's cookie, for this site only; over HTTPS, for HTTPS only."""
        users = self.app.tokens
        while len(users) >= MAX_USERS:
            del users[next(iter(users))]  # the oldest
        token = secrets.token_urlsafe(16)
        users[token] = user
        # behind a proxy, only the browser's Origin may show HTTPS
        https = "https" in (request.url.scheme, request.headers.get("origin", "").split(":")[0])
        response.set_cookie(self._cookie(https), token, secure=https, httponly=True, samesite="lax")

    def _cookie(self, https: bool) -> str:
        """The name of the cookie with the token."""
        return f"access-token-{'' if https else 'unsecure-'}{self.app.cookie_id}"

    def discard_files(self) -> None:
        """Empty Gradio's lists of the files it has seen, which only grow."""
        for names in self.app.get_blocks().temp_file_sets:
            names.clear()

    def disconnect(self) -> None:
        """End the streams of all open pages."""
        self.app.stop_event.set()


def refuse_addresses() -> None:
    """Make Gradio's functions that fetch addresses refuse them all, in this process."""

    async def refuse(*_: object, **__: object) -> Any:
        raise gr.Error("Send a file, not an address.", print_exception=False)

    for name in FETCH_FUNCTIONS:
        assert hasattr(processing_utils, name), f"Gradio {gr.__version__} has no {name}"
        setattr(processing_utils, name, refuse)
