"""A multipart form's fields, read by type; every refusal names the field and what would work."""

import math

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from slimwhisper.app.api.errors import APIError

BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
MAX_FIELDS = 50  # of a form
MAX_FIELD_BYTES = 4 << 20  # of a field: the longest is a known speaker's recording
MAX_TEXT = 100_000  # characters: of a prompt, only the last 224 tokens count
SHOWN = 100  # characters of a value in a message


async def read_form(request: Request) -> FormData:
    """The form in a request's body. Raises APIError."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise APIError(415, "send a form (multipart/form-data) with an audio file in 'file'")
    try:
        return await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except APIError:
        raise
    except StarletteHTTPException as error:
        raise APIError(error.status_code, f"the form cannot be read: {error.detail}") from error


def refused(field: str, message: str) -> APIError:
    """The response to a field that cannot be used."""
    return APIError(400, message, None, field)


class Fields:
    """A form's fields. It remembers which were looked up: the others are `unknown`."""

    def __init__(self, form: FormData) -> None:
        self._form = form
        self._known: set[str] = set()

    def upload(self) -> UploadFile:
        """The audio file. Raises APIError."""
        self._known.add("file")
        upload = self._form.get("file")
        if not isinstance(upload, UploadFile):
            raise refused("file", "file: send an audio file in the form's field 'file'")
        return upload

    def text(self, name: str) -> str | None:
        """A field's text; None if it is missing or empty."""
        self._known.add(name)
        value = self._form.get(name)
        if isinstance(value, UploadFile):
            raise refused(name, f"{name} must be text, not a file")
        _check_length(name, [value or ""], MAX_TEXT)
        return value or None

    def texts(self, name: str, most: int = MAX_TEXT) -> list[str]:
        """The values of a field that may be repeated, sent as "name[]" or as "name".

        most: characters of all of them together.
        """
        found = []
        for key in (f"{name}[]", name):
            self._known.add(key)
            for value in self._form.getlist(key):
                if isinstance(value, UploadFile):
                    raise refused(key, f"{key} must be text, not a file")
                if value:
                    found.append(value)
        _check_length(name, found, most)
        return found

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """A field with one of the values in `known`; None if it is missing or empty."""
        value = self.text(name)
        if value is not None and value not in known:
            raise not_one_of(name, value, known)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in BOOLEANS:
            raise not_one_of(name, value, ("true", "false"))
        return BOOLEANS[value.lower()]

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number from `least` to `most`; None if the field is missing or empty."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise refused(name, f"{name} {text[:SHOWN]!r} is not between {least:g} and {most:g}")
        return value

    def whole(self, name: str, least: int, most: int) -> int | None:
        """The same for a whole number."""
        value = self.number(name, least, most)
        if value is not None and value != int(value):
            raise refused(name, f"{name} {self.text(name)!r} is not a whole number")
        return None if value is None else int(value)

    def inside(self, name: str) -> dict[str, str]:
        """The fields "name[key]", by key."""
        found = {}
        for full in self._form:
            if full.startswith(f"{name}[") and full.endswith("]"):
                found[full[len(name) + 1 : -1]] = self.text(full) or ""
        return found

    def unknown(self) -> list[str]:
        """The names of the fields that nobody looked up."""
        return [name for name in self._form if name not in self._known]


def _check_length(name: str, texts: list[str], most: int) -> None:
    length = sum(map(len, texts))
    if length > most:
        raise refused(name, f"{name} has {length} characters; send {most} at most")


def not_one_of(name: str, value: str, known: tuple[str, ...]) -> APIError:
    """The response to a value that is not among the known ones."""
    return refused(name, f"{name} {value[:SHOWN]!r} is not one of {', '.join(known)}")
