"""Checks the bodies that are posted to Gradio, before Gradio reads them.

Gradio fetches the address in any argument that looks like a file, whatever its purpose, and fails
with a traceback for a function that does not exist.
"""

import json
from collections.abc import Callable, Container
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import check_size
from slimwhisper.app.page.gradio_internals import NoSuchFunction

FILE_ROUTE = "/gradio_api/file="  # then a path: the address of a file that was sent to the page
MAX_TEXT = 200_000  # characters: of a text to align, some four hours of speech
MAX_VALUES = 50_000  # in a body: a thousand files have 10,000
MAX_DEPTH = 10  # of values in values; a file has 6


class GradioBodyCheck:
    """ASGI middleware for Gradio's app: refuses bodies that `check_body` refuses."""

    def __init__(
        self, app: ASGIApp, *, functions: Container[int], is_stored: Callable[[str], bool]
    ) -> None:
        """functions: the indices that a call may have. is_stored: whether a path is an upload's."""
        self.app, self._functions, self._is_stored = app, functions, is_stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._post(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
            # the event stream of a call that does not exist: the error has been sent already
            await send({"type": "http.response.body"})

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await Request(scope, receive).body()
            check_body(body, self._functions, self._is_stored)
        except APIError as error:  # too large
            await error.response()(scope, receive, send)
            return
        except ValueError as error:
            await JSONResponse({"detail": str(error)}, 400)(scope, receive, send)
            return
        unread = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        try:
            await self.app(scope, replay, send)
        except NoSuchFunction as error:
            await JSONResponse({"detail": str(error)}, 404)(scope, receive, send)


def check_body(body: bytes, functions: Container[int], is_stored: Callable[[str], bool]) -> None:
    """Raise ValueError, with a message for the user, if a body must not reach Gradio.

    A dictionary with a path or an address must be a file that was sent to the page. Texts must be
    valid Unicode of limited length.
    """
    try:
        check_size(body)
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("the body must be a JSON object")
    index = content.get("fn_index")
    if index is not None and not (type(index) is int and index in functions):
        raise ValueError("unknown function; reload the page")
    level: list[Any] = [content]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError("the body has too many values")
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, dict):
                _check_file(value, is_stored)
        level = [inner for value in level for inner in _children(value)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text has {len(text)} characters; send at most {MAX_TEXT}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text is not valid Unicode") from None


def _check_file(value: dict[str, Any], is_stored: Callable[[str], bool]) -> None:
    path, url = value.get("path"), value.get("url")
    if isinstance(url, str):  # the page's own address of the file
        url = unquote(url.partition(FILE_ROUTE)[2])
    for address in (path, url):
        if address is not None and not (isinstance(address, str) and is_stored(address)):
            raise ValueError("a file was not uploaded to this page; upload it first")
