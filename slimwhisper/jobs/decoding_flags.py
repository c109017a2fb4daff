"""Defines the decoding flags of `transcribe`: the fields of `Options`, with the same names."""

import argparse
from dataclasses import fields
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.flags import FlagGroup, add_options, add_voices, none_or
from slimwhisper.options import Options
from slimwhisper.outputs.layout import LayoutOptions
from slimwhisper.speakers.choice import named_file

GROUPS = {  # titles, and the text below them
    "decoding": "same names and defaults as the whisper command",
    "prompting": "",
    "thresholds": "",
    "words": "the other flags require --word_timestamps True",
    "speakers": "--speakers, --known_speaker and --voices require --diarize; docs/speakers.md",
}

# the whisper command's defaults, where those of its library differ
COMMAND_DEFAULTS = {"temperature": 0.0, "beam_size": 5, "best_of": 5}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}


class _StoreExplicit(argparse.Action):
    """Stores the value, and that the user gave it, so that it overrides the model's settings."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.explicit = {*getattr(namespace, "explicit", ()), self.dest}


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option, and those that only the command has."""
    groups = {name: FlagGroup(parser, name, group) for name, group in GROUPS.items()}
    add_options(groups, Options, COMMAND_DEFAULTS, action=_StoreExplicit)
    groups["decoding"].add(
        "--temperature_increment_on_fallback",
        type=none_or(float),
        default=0.2,
        help="step to the next temperature, up to 1, when a window fails a threshold; "
        "None disables the fallback",
    )
    add_options(groups, LayoutOptions)
    groups["speakers"].add(
        "--known_speaker",
        dest="known_speakers",
        metavar="NAME=FILE",
        type=_named_file,
        action=_Collect,
        default=(),
        help="name of a speaker, and a recording of only this voice; repeat the flag for others "
        "[none]",
    )
    add_voices(groups["speakers"], dest="known_speakers", action=_Collect)


def _named_file(text: str) -> tuple[tuple[str, str]]:
    try:
        return (named_file(text),)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Collect(argparse.Action):
    """Adds the values to a tuple."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), *values))


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding options from the parsed arguments: those that the user gave, and the command's
    defaults that differ from the library's. Raises OptionError.
    """
    explicit = getattr(arguments, "explicit", ())
    if getattr(arguments, "draft", None) is not None and "beam_size" not in explicit:
        arguments.beam_size = None  # drafts are for greedy decoding
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in DEFAULTS and (name in explicit or value != DEFAULTS[name])
    }
    step = arguments.temperature_increment_on_fallback
    options["temperature"] = temperatures(arguments.temperature, step)
    return options


def changed(options: dict[str, Any]) -> dict[str, Any]:
    """The decoding options that differ from the library's defaults."""
    return {name: value for name, value in options.items() if value != DEFAULTS[name]}


def temperatures(first: float, increment: float | None) -> float | tuple[float, ...]:
    """The temperatures to try in turn, bit for bit those of the whisper command."""
    if increment is None:
        return first
    if not increment > 0:
        what = f"{increment} is not a positive number; give one, or None for no fallback"
        raise OptionError(f"--temperature_increment_on_fallback {what}")
    import numpy as np

    ladder = tuple(np.arange(first, 1.0 + 1e-6, increment).tolist())
    if not ladder:
        what = f"--temperature {first} is more than 1, so nothing is left to fall back to"
        raise OptionError(f"{what}; add --temperature_increment_on_fallback None")
    return ladder
