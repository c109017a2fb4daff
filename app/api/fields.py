"""The fields that a client sends, in a form or in JSON, checked by pydantic.

Every refusal names the field and what would work.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError, PydanticUseDefault, from_json
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from slimwhisper.app.api.errors import APIError

MAX_FIELDS = 50  # of a form
MAX_FIELD_BYTES = 4 << 20  # of a field: the longest is a known speaker's recording
MAX_TEXT = 100_000  # characters: of a prompt, only the last 224 tokens count
SHOWN = 100  # characters of a value in a message


class Fields(BaseModel):
    """An object of JSON; what else it has is ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    def unknown(self, given: dict[str, Any], path: str) -> list[str]:
        """The paths of the fields of `given` that are not known, in the objects within it too."""
        known = type(self).model_fields
        found = [path + name for name in given if name not in known]
        for name, inner in self:
            if isinstance(inner, Fields) and isinstance(given.get(name), dict):
                found += inner.unknown(given[name], f"{path}{name}.")
        return found


def _upload(value: Any) -> Any:
    if not isinstance(value, UploadFile):
        raise wrong("send an audio file in the form's field 'file'")
    return value


class UploadForm(Fields):
    """A multipart form with a recording. `model_extra` has the fields that are not known."""

    model_config = ConfigDict(extra="allow", strict=False)  # all values are texts

    file: Annotated[Any, AfterValidator(_upload)] = Field(None, validate_default=True)


F = TypeVar("F", bound=Fields)


def check(kind: type[F], given: object, path: str = "") -> F:
    """An object of JSON, checked. path: its own place, such as "session". Raises APIError."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _refused_first(error, path) from None


def check_form(kind: type[F], form: FormData) -> F:
    """A form, checked. An empty field is none; a field "name[]" may be sent as "name", too.

    Raises APIError.
    """
    lists = {field.alias for field in kind.model_fields.values() if field.alias}
    given: dict[str, Any] = {}
    for name, value in form.multi_items():
        if f"{name}[]" in lists:
            name += "[]"
        if value and name in lists:
            given.setdefault(name, []).append(value)
        elif value:
            given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        found = _refused_first(error, "")
        found.param = (found.param or "").partition(".")[0]  # the field, not what is wrong within
        raise found from None


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


def json_object(text: str | bytes, name: str) -> dict[str, Any]:
    """An object of JSON, without numbers and halves of characters that JSON does not have.

    name: what messages call the text. Raises APIError.
    """
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise refused(None, f"{name} is not JSON: {error}", "invalid_json") from None
    if not isinstance(found, dict):
        raise refused(None, f"{name} is not a JSON object", "invalid_json")
    return found


def refused(param: str | None, message: str, code: str = "invalid_value") -> APIError:
    """The response to a field that cannot be used."""
    return APIError(400, message, code, param)


def unsupported(param: str, reason: str) -> APIError:
    """The response to a field that is known and cannot be honoured."""
    return refused(param, f"{param} is not served: {reason}", "not_supported")


# -- types of fields ---------------------------------------------------------------------------


def wrong(reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """What a field's validator raises. reason: what would work."""
    return PydanticCustomError(code, "{reason}", {"reason": reason})


def _taken(
    refuses: Callable[[Any], bool], reason: str, code: str = "invalid_value"
) -> Callable[[Any], Any]:
    """Takes all values but some."""

    def check_value(value: Any) -> Any:
        if refuses(value):
            raise wrong(reason, code)
        return value

    return check_value


def one_of(known: Iterable[Any]) -> AfterValidator:
    """Only these values are taken."""
    values = tuple(known)
    reason = f"choose {', '.join(map(str, values))}"
    return AfterValidator(_taken(lambda value: value not in values, reason))


def only(accepted: float, reason: str) -> AfterValidator:
    """Only this value is taken. reason: why no other."""
    reason = f"only {str(accepted).lower()} is served: {reason}"
    return AfterValidator(_taken(lambda value: value != accepted, reason))


def unserved(refuses: Callable[[Any], bool], reason: str) -> BeforeValidator:
    """Some values are known, and cannot be honoured."""
    return BeforeValidator(_taken(refuses, f"not served: {reason}", "not_supported"))


def _use_default(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(texts: tuple[str, ...]) -> tuple[str, ...]:
    if (length := sum(map(len, texts))) > MAX_TEXT:
        raise wrong(f"{length} characters; send {MAX_TEXT} at most")
    return texts


NULL_IS_DEFAULT = BeforeValidator(_use_default)
WHOLE = BeforeValidator(_as_int)  # JSON's 1.0 is a whole number, too
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Texts = Annotated[tuple[str, ...], AfterValidator(_short)]


def _refused_first(error: ValidationError, path: str) -> APIError:
    """The response to the first thing that is wrong."""
    found = error.errors(include_url=False)[0]
    names = [path, *(name for name in found["loc"] if isinstance(name, str))]
    place = ".".join(filter(None, names))
    reason, value = found["msg"], found["input"]
    shown = f" {value!r:.{SHOWN}}" if isinstance(value, str | int | float) else ""
    message = f"{place or 'the body'}{shown}: {reason[:1].lower()}{reason[1:]}"
    code = found["type"] if "reason" in found.get("ctx", ()) else "invalid_value"
    return refused(place or None, message, code)
