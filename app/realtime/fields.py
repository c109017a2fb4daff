"""The fields of a JSON object, read by type; every refusal names the field and what would work."""

import math
from typing import Any

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.form import SHOWN

MAX_UNKNOWN = 20  # names of unknown fields that are kept
MAX_NAME = 40  # characters of such a name


def invalid(param: str | None, message: str, code: str = "invalid_value") -> APIError:
    """The error of a field that cannot be used."""
    return APIError(400, message, code, param)


def unsupported(param: str, reason: str) -> APIError:
    """The error of a field that is known and cannot be honoured."""
    return invalid(param, f"{param} is not served: {reason}", "not_supported")


class Fields:
    """A JSON object. It remembers which fields were looked up: the others are `unknown`."""

    def __init__(self, given: object, path: str) -> None:
        """path: the object's own place, such as "session.audio". Raises APIError."""
        if not isinstance(given, dict):
            what = path or "the body"
            raise invalid(path, f"{what} must be a JSON object, not {_shown(given)}")
        self.given: dict[str, Any] = given
        self.path = path
        self._known: set[str] = set()
        self._inside: list[Fields] = []

    def name(self, field: str) -> str:
        """A field's whole path."""
        return f"{self.path}.{field}" if self.path else field

    def has(self, field: str) -> bool:
        """Whether a field is there, null or not."""
        self._known.add(field)
        return field in self.given

    def value(self, field: str) -> Any:
        """A field as it is; None if it is missing."""
        self._known.add(field)
        return self.given.get(field)

    def inside(self, field: str) -> "Fields | None":
        """An object within this one; None if it is missing or null."""
        value = self.value(field)
        if value is None:
            return None
        found = Fields(value, self.name(field))
        self._inside.append(found)
        return found

    def text(self, field: str, most: int) -> str | None:
        """A text of at most `most` characters; None if it is missing, null or empty."""
        value = self.value(field)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > most:
            path = self.name(field)
            raise invalid(path, f"{path} must be a text of at most {most} characters")
        return value or None

    def texts(self, field: str, most: int, count: int) -> list[str]:
        """A list of at most `count` texts; empty if it is missing or null."""
        value = self.value(field)
        if value is None:
            return []
        fits = isinstance(value, list) and len(value) <= count
        if not fits or not all(isinstance(v, str) and len(v) <= most for v in value):
            path = self.name(field)
            raise invalid(
                path, f"{path} must be a list of at most {count} texts of {most} characters"
            )
        return [v for v in value if v]

    def choice(self, field: str, known: tuple[str, ...]) -> str | None:
        """One of the values in `known`; None if it is missing or null."""
        value = self.value(field)
        if value is not None and value not in known:
            path = self.name(field)
            raise invalid(path, f"{path} {_shown(value)} is not one of {', '.join(known)}")
        return value

    def number(self, field: str, least: float, most: float) -> float | None:
        """A number from `least` to `most`; None if it is missing or null."""
        value = self.value(field)
        if value is None:
            return None
        number = value if isinstance(value, int | float) and value is not True else math.nan
        if value is False or not least <= number <= most:
            path = self.name(field)
            raise invalid(path, f"{path} {_shown(value)} is not between {least:g} and {most:g}")
        return number

    def whole(self, field: str, least: int, most: int) -> int | None:
        """The same for a whole number."""
        value = self.number(field, least, most)
        if value is not None and value != int(value):
            path = self.name(field)
            raise invalid(path, f"{path} {_shown(value)} is not a whole number")
        return None if value is None else int(value)

    def unknown(self) -> list[str]:
        """The paths of fields that nobody looked up, here and in the objects that were read."""
        found = [self.name(str(f)[:MAX_NAME]) for f in self.given if f not in self._known]
        for fields in self._inside:
            found += fields.unknown()
        return found[:MAX_UNKNOWN]


def _shown(value: object) -> str:
    return repr(value)[:SHOWN]
