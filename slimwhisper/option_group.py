"""What a group of options is: its fields with their help and limits, and what it checks.

A group is a dataclass in the folder of its feature. `slimwhisper.options` joins the groups of a
transcription. The command line, the HTTP API and the journal of a job follow from their fields.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from operator import index
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.text import not_one_of
from slimwhisper.types import Dims

TASKS = ("transcribe", "translate")
AUDIO_WINDOWS = ("auto", "near", "full")
DETECT = ("", "auto", "none", "null", "und")  # instead of a language: it is to be detected
WITHIN: dict[str, Any] = {"low": 0, "high": 1, "open": True}  # of a probability
MILLISECONDS: dict[str, Any] = {"low": 0, "high": 60_000}  # of silence or speech
# types of options that have no bounds: what is taken for them, and in words
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "bool": ((Integral,), "True or False"),
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    "tuple": ((tuple,), "a list"),
}


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """The help and the limits of an option, wherever it can be set.

    Attributes:
        section: The section of the command's flags. "" means that there is no flag.
        help: What the option does, as the command's help says it.
        low: The smallest number that is allowed. None means that there are no limits.
        high: The largest number that is allowed. None means that there is no such limit.
        open: Whether the limits themselves are not allowed.
        choices: The values that are allowed. An empty tuple means that there is no such list.
        needs: The names of other options, of which one must be set.
        parse: What reads the value of the flag. None means that the type of the field does.
    """

    section: str
    help: str
    low: float | None = None
    high: float | None = None
    open: bool = False
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None


def option(default: Any, help: str, *, section: str = "", **arguments: Any) -> Any:
    """Make a field of a group of options.

    Args:
        default: The default of the option.
        help: What the option does.
        section: The section of the command's flags. "" means that there is no flag.
        **arguments: Other fields of `OptionHelp`.

    Returns:
        The field, for `dataclasses`.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyOptions(OptionGroup):
        ...     most: int | None = option(None, "at most this many", section="decoding", low=1)
    """
    return field(default=default, metadata={"help": OptionHelp(section, help, **arguments)})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model when its options are checked.

    Attributes:
        name: The model's name, for error messages.
        dims: The dimensions of the model.
        vocabulary: The model's `Vocabulary`.
        settings: The model's own `GenerationSettings`. None means that it has none.
    """

    name: str
    dims: Dims
    vocabulary: Any
    settings: Any = None


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """The options of a feature.

    A subclass has a field for each option, made by `option`, and those of the following methods
    that it needs.
    """

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Replace what was given by what is meant, in place, before it is checked.

        Args:
            values: The options of all groups that were given, by name.
            defaults: The model's own values for the others.
            model: The model that they are for.

        Raises:
            OptionError: When a value cannot be read.
        """

    def check(self, model: ModelFacts) -> None:
        """Check what the limits of single fields do not say.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When a value is invalid, contradicts another, or is not for this model.
            DependencyError: When a package that an option needs is missing.
        """

    def change_rules(self, rules: Any, vocabulary: Any) -> Any:
        """Add to the rules of a window what the feature's filter of tokens reads.

        Args:
            rules: The `Rules`.
            vocabulary: The model's `Vocabulary`.

        Returns:
            The rules.

        Raises:
            OptionError: When they cannot be made.
        """
        return rules

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the journal of a job records instead of options that name files.

        Args:
            options: The options that differ from their defaults, by name.

        Returns:
            The values to record, by the names of the options.
        """
        return {}


def groups_of(kind: type, hook: str) -> list[Any]:
    """List the groups that a class of options joins and that define a method.

    Args:
        kind: The class of options.
        hook: The name of the method.

    Returns:
        The groups, the first base's last.
    """
    return [group for group in reversed(kind.__mro__) if hook in vars(group)]


def asks_detection(language: object) -> bool:
    """Return whether a value asks for the language to be detected, as "auto" does.

    Args:
        language: The value.

    Returns:
        Whether it does.
    """
    return isinstance(language, str) and language.strip().lower() in DETECT


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options as they enter.

    Numbers and arrays of numpy and torch become those of Python, and a language that is to be
    detected becomes None.

    Args:
        values: The options by name.

    Returns:
        The converted options by name.
    """
    plain = {name: plain_value(value) for name, value in values.items()}
    if asks_detection(plain.get("language")):
        plain["language"] = None
    return plain


def plain_value(value: Any) -> Any:
    """Convert a number or an array of numpy or torch, also in a list, to Python's.

    Args:
        value: The value. An array of shape [n] becomes a tuple, as a list and a range do.

    Returns:
        The converted value; any other value stays as it is.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return tuple(map(plain_value, value))
    if type(value) is dict:
        return {key: plain_value(each) for key, each in value.items()}
    return value


def check_count(name: str, count: int, least: int = 1) -> int:
    """Check a number that is no field of a group.

    Args:
        name: Its name.
        count: The number.
        least: The smallest number that is allowed.

    Returns:
        The number as Python's.

    Raises:
        OptionError: When it is not whole, or smaller.
    """
    with suppress(TypeError):
        if index(count) >= least:
            return index(count)
    raise OptionError(f"{name} {count!r} is not a whole number from {least}")


def check_names(kind: type, given_names: Iterable[str]) -> None:
    """Check that names are fields of a dataclass of options.

    Args:
        kind: The dataclass.
        given_names: The names.

    Raises:
        OptionError: When a name is unknown. The message has the nearest name.
    """
    names = [row.name for row in fields(kind)]
    for name in given_names:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise OptionError(f"unknown option {name!r}; {hint}")


def check_rows(options: Any) -> None:
    """Check the choices, limits and needs of each field, as its `OptionHelp` says.

    Args:
        options: An instance of `Options` or `LiveOptions`.

    Raises:
        OptionError: When a value is not allowed.
    """
    for row in fields(options):
        limits, value = row.metadata["help"], getattr(options, row.name)
        may_be_none = str(row.type).endswith(("None", "bool"))  # for the latter it is False
        if value == row.default or (value is None and may_be_none):
            continue
        if limits.choices and value not in limits.choices:
            raise OptionError(f"{row.name} {not_one_of(value, limits.choices, ':')}")
        if limits.low is not None:
            _check_bounds(row.name, value, str(row.type).startswith("int"), limits)
        else:
            _check_type(row, value)
        if limits.needs and not any(getattr(options, name) for name in limits.needs):
            raise OptionError(f"{row.name} also needs {' or '.join(limits.needs)}")


def _check_type(row: "Field[Any]", value: Any) -> None:
    """Raise OptionError for a value of another type than the field's."""
    names = re.sub(r"tuple\[.*\]", "tuple", str(row.type)).split(" | ")
    kinds = [KINDS[name] for name in names if name in KINDS]
    # NaN is no number, and not equal to itself
    if kinds and not any(isinstance(value, types) and value == value for types, _ in kinds):
        expected = " or ".join(words for _, words in kinds)
        kind = type(value).__name__
        raise OptionError(f"{row.name} {value!r} is of type {kind}; give {expected}")


def _check_bounds(name: str, value: Any, whole: bool, limits: OptionHelp) -> None:
    assert limits.low is not None
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    high = limits.high or float("inf")
    if not fits or not limits.low <= value <= high or (limits.open and value in (limits.low, high)):
        kind = "whole number" if whole else "number"
        end = "up" if limits.high is None else f"to {limits.high}"
        allowed = f"from {limits.low} {end}"
        if limits.open:
            allowed = f"between {limits.low} and {limits.high}"
        raise OptionError(f"{name} {value!r} is not a {kind} {allowed}")
