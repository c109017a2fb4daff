"""All that the page uses of Gradio without a promise in Gradio's documentation.

Gradio has no documented way to bound the uploads of all users together, to give a login's cookie to
one site only, to refuse addresses, to keep tracebacks out of the log, and to end open pages at
shutdown.
"""

from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio import processing_utils
from gradio.route_utils import FnIndexInferError as NoSuchFunction
from gradio.route_utils import upload_fn as read_upload
from gradio.routes import App
from gradio.routes import file_upload_statuses as progress_of_uploads
from starlette.routing import Mount

__all__ = ["Blocks", "Gradio", "NoSuchFunction", "progress_of_uploads", "read_upload"]

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
    """Gradio's app, mounted last on a server's."""

    def __init__(self, server: FastAPI) -> None:
        mounted = server.routes[-1]
        assert isinstance(mounted, Mount) and isinstance(mounted.app, App)
        self.app = mounted.app
        self.app.get_blocks().has_launched = True  # else it would take files that were not uploaded
        refuse_addresses()

    @property
    def users(self) -> dict[str, str] | None:
        """Who is logged in, by the token in their cookie; None: no login is needed."""
        users: dict[str, str] = self.app.tokens
        return users if self.app.auth is not None else None

    def cookie(self, https: bool) -> str:
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
