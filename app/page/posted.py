"""What the page posts as JSON: only this server's page may, a body is limited, and texts are clean.

Browsers send JSON to another site only after a question, OPTIONS, which `add_post` refuses.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

MAX_BODY = 8 << 20  # bytes: all texts of a day of speech
MAX_TEXT = 5000  # characters of a segment: ten times what is said in 30 s
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks among them
ORIGINS = (None, "same-origin", "none")  # of Sec-Fetch-Site

Body = TypeVar("Body", bound=BaseModel)


def add_post(router: APIRouter, path: str, route: Callable[..., Awaitable[Response]]) -> None:
    """Add a route that calls `read_posted`."""
    router.add_api_route(path, route, methods=["POST"], response_model=None)

    async def preflight() -> Response:  # Gradio would allow every site to post
        raise HTTPException(405, "only this server's page may post here")

    router.add_api_route(path, preflight, methods=["OPTIONS"], response_model=None)


async def read_posted(request: Request, kind: type[Body]) -> Body:
    """The body. Raises HTTPException: 400, 403, 413 or 415."""
    if request.headers.get("sec-fetch-site") not in ORIGINS:
        raise HTTPException(403, "only this server's page may post here")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"{MAX_BODY >> 20} MB at most can be sent at once")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise HTTPException(400, f"{place}: {first['msg']}") from None


def clean(text: str) -> str:
    """One line, without the arrow of subtitles' times, which `whisper` writes shorter too."""
    return CONTROL.sub(" ", text).replace("-->", "->").strip()
