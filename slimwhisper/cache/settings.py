"""A cache form with its settings, as users write it: `sparq:r=16,k=128`.

The settings of a form are a frozen dataclass with defaults for all fields, of the types int,
float, bool, str, or one of the first two or None, which is written `all`. Its `__post_init__`
raises ValueError for invalid values, and says which are valid.
"""

from dataclasses import fields
from typing import Any, TypeVar, get_args, get_type_hints

Settings = TypeVar("Settings")

ALL = "all"


def split_spec(spec: str) -> tuple[str, str]:
    """ "sparq:r=16" -> ("sparq", "r=16"); "kv" -> ("kv", "")."""
    name, _, values = spec.partition(":")
    return name, values


def parse_settings(kind: type[Settings], text: str) -> Settings:
    """ "r=16,k=all" -> settings of this kind, with its defaults for the rest.

    Raises ValueError: one line that says which setting is wrong, and what is valid.
    """
    hints, names = get_type_hints(kind), [f.name for f in fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name not in names or not equals:
            example = describe_settings(kind())
            raise ValueError(f"{pair.strip()!r} is not a setting; give for example {example}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = _value(name, value, hints[name])
    return kind(**values)


def describe_settings(settings: Any) -> str:
    """The inverse, with every value: "r=16,k=all"."""
    pairs = ((f.name, getattr(settings, f.name)) for f in fields(settings))
    return ",".join(f"{name}={_format(value)}" for name, value in pairs)


def _value(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)  # int | None -> (int, NoneType)
    if text == ALL and type(None) in kinds:
        return None
    if kinds[0] is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}={text} is neither true nor false")
        return text.lower() == "true"
    try:
        return kinds[0](text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[kinds[0]]
        or_all = f" or {ALL}" if type(None) in kinds else ""
        raise ValueError(f"{name}={text} is not {kind}{or_all}") from None


def _format(value: Any) -> str:
    if value is None:
        return ALL
    return str(value).lower() if isinstance(value, bool) else str(value)
