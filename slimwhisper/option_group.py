"""What a group of options is: its fields with their help and limits, and what it checks.

A group is a dataclass in the folder of its feature. `slimwhisper.options` joins the groups of a
transcription; the command line, the HTTP API and a job's journal follow from their fields.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
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
    """The help and the limits of an option, wherever it can be set."""

    section: str  # of the command's flags; "": it has no flag
    help: str
    low: float | None = None  # bounds of a number; None: none
    high: float | None = None
    open: bool = False  # whether the bounds themselves are not allowed
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # options of which one must be set, too


def option(default: Any, help: str, *, section: str = "", **arguments: Any) -> Any:
    """A field of a group. arguments: of `OptionHelp`."""
    return field(default=default, metadata={"help": OptionHelp(section, help, **arguments)})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What options depend on."""

    name: str  # in error messages
    dims: Dims
    vocabulary: Any  # a `Vocabulary`
    settings: Any = None  # the model's own `GenerationSettings`; None: it has none


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """The options of a feature. What a group does not need of the following, it leaves out."""

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Replace, in place, what was given by what is meant, before it is checked.

        Arguments:
            values: The options that were given, by name, of all groups.
            defaults: The model's own for the others.
            model: The model that they are for.

        Raises:
            OptionError: A value cannot be read.
        """

    def check(self, model: ModelFacts) -> None:
        """Check what the limits of single fields do not say.

        Raises:
            OptionError: A value is invalid, contradicts another, or is not for this model.
            DependencyError: A package that an option needs is missing.
        """

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """What the journal of a job records instead of options that name files.

        Arguments:
            options: Those that differ from their defaults, by name.
        """
        return {}


def groups_of(kind: type, hook: str) -> list[Any]:
    """The groups that a class of options joins and that define this function."""
    return [group for group in reversed(kind.__mro__) if hook in vars(group)]


def asks_detection(language: object) -> bool:
    """Whether a value asks for the language to be detected, as "auto" does."""
    return isinstance(language, str) and language.strip().lower() in DETECT


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name as they enter: numbers and arrays of numpy and torch as Python's, and None
    for a language that is to be detected.
    """
    plain = {name: plain_value(value) for name, value in values.items()}
    if asks_detection(plain.get("language")):
        plain["language"] = None
    return plain


def plain_value(value: Any) -> Any:
    """A number or an array [...] of numpy or torch, also in a list, as Python's: a list for [n]."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain_value, value))
    if type(value) is dict:
        return {key: plain_value(each) for key, each in value.items()}
    return value


def check_names(kind: type, given_names: Iterable[str]) -> None:
    """Raise OptionError for a name that is not a field of a dataclass of options."""
    names = [row.name for row in fields(kind)]
    for name in given_names:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise OptionError(f"unknown option {name!r}; {hint}")


def check_rows(options: Any) -> None:
    """Check the choices, bounds and needs of each field of `Options` or `LiveOptions`, as its
    `OptionHelp` says. Raises OptionError.
    """
    for row in fields(options):
        limits, value = row.metadata["help"], getattr(options, row.name)
        may_be_none = str(row.type).endswith("None")
        if value == row.default or (value is None and (may_be_none or limits.low is None)):
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
    if kinds and not any(isinstance(value, types) for types, _ in kinds):
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
