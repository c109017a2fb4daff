"""Checks the fields that a client sends, in a form or in JSON, with pydantic.

Every error names the field and the values that would be accepted.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError, PydanticUseDefault, from_json
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from slimwhisper.app.api.errors import APIError
from slimwhisper.option_group import OptionHelp
from slimwhisper.options import Options

MAX_FIELDS = 50  # of a form
MAX_FIELD_BYTES = 4 << 20  # of a field: the longest is a known speaker's recording
MAX_TEXT = 100_000  # characters: of a prompt, only the last 224 tokens count
MAX_OBJECTS = 50_000  # of a JSON text, with its arrays: parsing millions takes seconds
MAX_EXCERPT = 100  # characters of a value in a message


class LenientModel(BaseModel):
    """A JSON object; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    def unknown(self, data: dict[str, Any], path: str) -> list[str]:
        """The paths of the unknown fields of `data`, including those of nested objects."""
        known = type(self).model_fields
        names = [path + name for name in data if name not in known]
        for name, inner in self:
            if isinstance(inner, LenientModel) and isinstance(data.get(name), dict):
                names += inner.unknown(data[name], f"{path}{name}.")
        return names


def _upload(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, UploadFile):
        raise invalid(f"send an audio file in the form's field '{info.field_name}'")
    return value


Upload = Annotated[Any, AfterValidator(_upload)]


class TextForm(LenientModel):
    """A form, whose values are all texts. `model_extra` has the unknown fields."""

    model_config = ConfigDict(extra="allow", strict=False)


class UploadForm(TextForm):
    """A multipart form with a recording."""

    file: Upload = Field(None, validate_default=True)


F = TypeVar("F", bound=LenientModel)


def check(kind: type[F], data: object, path: str = "") -> F:
    """A JSON object, checked. path: of the object itself, such as "session". Raises APIError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _first_error(error, path) from None


def check_form(kind: type[F], form: FormData) -> F:
    """A form, checked. Empty fields are ignored; a field "name[]" may be sent as "name", too.

    Raises APIError.
    """
    lists = {field.alias for field in kind.model_fields.values() if field.alias}
    values: dict[str, Any] = {}
    for sent, value in form.multi_items():
        name = f"{sent}[]" if f"{sent}[]" in lists else sent
        if value and name in lists:
            values.setdefault(name, []).append(value)
        elif value:
            values[name] = value
    try:
        return check(kind, values)
    except APIError as error:
        error.param = (error.param or "").partition(".")[0]  # the field, without the rest
        raise


async def read_form(request: Request) -> FormData:
    """The form in a request's body. Raises APIError."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise APIError(415, "send a form (multipart/form-data) with an audio file")
    try:
        return await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except APIError:
        raise
    except StarletteHTTPException as error:
        raise APIError(error.status_code, f"the form cannot be read: {error.detail}") from error


def close_files(form: FormData) -> None:
    """Close a form's files, which takes long for large ones; `form.close` does so in a thread."""
    for _, value in form.multi_items():
        if isinstance(value, UploadFile):
            value.file.close()


def check_size(text: str | bytes, most: int = MAX_OBJECTS) -> None:
    """Raises ValueError if a JSON text may have more objects and arrays: not all values count, as
    texts have commas.
    """
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > most:
        raise ValueError(f"it has more than {most} objects and arrays")


def json_object(text: str | bytes, name: str) -> dict[str, Any]:
    """A JSON object; NaN, infinities and lone surrogates are refused, as JSON does not have them.

    name: of the text, for messages. Raises APIError.
    """
    try:
        check_size(text)
        parsed = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise refused(None, f"{name} is not JSON: {error}", "invalid_json") from None
    if not isinstance(parsed, dict):
        raise refused(None, f"{name} is not a JSON object", "invalid_json")
    return parsed


def refused(param: str | None, message: str, code: str = "invalid_value") -> APIError:
    """The response to an invalid field."""
    return APIError(400, message, code, param)


def unsupported(param: str, reason: str) -> APIError:
    """The response to a field of the API that this server does not support."""
    return refused(param, f"{param} is not supported: {reason}", "not_supported")


# -- types of fields ---------------------------------------------------------------------------


def invalid(reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """The error that a field's validator raises. reason: what would be accepted."""
    return PydanticCustomError(code, "{reason}", {"reason": reason})


def _make_validator(
    refuses: Callable[[Any], bool], reason: str, code: str = "invalid_value"
) -> Callable[[Any], Any]:
    """A validator that refuses some values."""

    def check_value(value: Any) -> Any:
        if refuses(value):
            raise invalid(reason, code)
        return value

    return check_value


def one_of(allowed: Iterable[Any]) -> AfterValidator:
    """Accepts only these values."""
    values = tuple(allowed)
    reason = f"choose {', '.join(map(str, values))}"
    return AfterValidator(_make_validator(lambda value: value not in values, reason))


def only(accepted: float, reason: str) -> AfterValidator:
    """Accepts only this value. reason: why no other."""
    reason = f"only {str(accepted).lower()} is supported: {reason}"
    return AfterValidator(_make_validator(lambda value: value != accepted, reason))


def unsupported_if(refuses: Callable[[Any], bool], reason: str) -> BeforeValidator:
    """Refuses some values of the API that this server does not support."""
    return BeforeValidator(_make_validator(refuses, f"not supported: {reason}", "not_supported"))


def _use_default(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(texts: tuple[str, ...]) -> tuple[str, ...]:
    if (length := sum(map(len, texts))) > MAX_TEXT:
        raise invalid(f"{length} characters; send {MAX_TEXT} at most")
    return texts


def option_fields(*names: str, **defaults: Any) -> dict[str, Any]:
    """Fields of a form, for `create_model`, that are options by the same names, with their choices
    and bounds; lists have "[]" after their names. defaults: values where they are not sent; others
    are None.
    """
    rows = {row.name: row for row in dataclass_fields(Options)}
    made: dict[str, Any] = {}
    for name in names:
        limits: OptionHelp = rows[name].metadata["help"]
        kind = FORM_TYPES[str(rows[name].type).partition(" | ")[0]]
        if limits.choices:
            kind = Annotated[str, one_of(limits.choices)]
        alias = f"{name}[]" if kind is Texts else None
        bounds: dict[str, Any] = {"ge": limits.low, "le": limits.high}
        if limits.open:
            bounds = {"gt": limits.low, "lt": limits.high}
        made[name] = (kind | None, Field(defaults.get(name), alias=alias, **bounds))
    return made


NULL_IS_DEFAULT = BeforeValidator(_use_default)
WHOLE = BeforeValidator(_as_int)  # in JSON, 1.0 is a whole number, too
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Texts = Annotated[tuple[str, ...], AfterValidator(_short)]
# by the types of options
FORM_TYPES: dict[str, Any] = {
    "bool": bool,
    "float": float,
    "int": int,
    "str": Text,
    "tuple[str, ...]": Texts,
}


def _first_error(error: ValidationError, path: str) -> APIError:
    """The response to the first invalid field."""
    first = error.errors(include_url=False)[0]
    names = [path, *(name for name in first["loc"] if isinstance(name, str))]
    location = ".".join(filter(None, names))
    reason, value = first["msg"], first["input"]
    excerpt = f" {value!r:.{MAX_EXCERPT}}" if isinstance(value, str | int | float) else ""
    message = f"{location or 'the body'}{excerpt}: {reason[:1].lower()}{reason[1:]}"
    code = first["type"] if "reason" in first.get("ctx", ()) else "invalid_value"
    return refused(location or None, message, code)
