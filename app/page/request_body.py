"""Checks the JSON that the page posts. Users and sizes are limited in `api.paths`."""

import re
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException

from slimwhisper.app.api.fields import check_size

MAX_OBJECTS = 500_000  # more than the words of a day
MAX_ERRORS = 100  # pydantic makes the messages of all, to show one
MAX_TEXT = 5000  # characters of a segment: ten times as many as 30 s of speech have
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks among them


class RequestBody(BaseModel):
    """A JSON body; this class itself is an empty one. Its lists need `fail_fast`: an error for each
    of millions of values would take minutes and gigabytes.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


Body = TypeVar("Body", bound=RequestBody)


async def read_posted(request: Request, kind: type[Body]) -> Body:
    """The body. Raises HTTPException: 400 or 415."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")
    body = await request.body()
    try:
        check_size(body, MAX_OBJECTS)
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(400, first_problem(error)) from None
    except ValueError as error:
        raise HTTPException(400, f"the body: {error}") from None


def first_problem(error: ValidationError) -> str:
    """The first invalid field, and the reason, without the value that was sent."""
    if (count := error.error_count()) > MAX_ERRORS:
        return f"the body has {count} mistakes"
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"


def clean(text: str) -> str:
    """One line, with the arrow of subtitle times shortened, as `whisper` does."""
    return CONTROL.sub(" ", text).replace("-->", "->").strip()
