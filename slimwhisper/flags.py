"""Defines the flags that several commands share: the model, its device and its caches.

A new argument of `load_model` gets its flag in `add_model_flags`, so that all commands that load a
model have it. What they share besides is `load_chosen`, and how signals are caught.
"""

import argparse
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slimwhisper._lazy import lasting_imports
from slimwhisper.cache.forms import CACHE_DTYPES, PRESETS, check_cache, check_form, names_of
from slimwhisper.option_group import AUDIO_WINDOWS, OptionHelp
from slimwhisper.speakers.choice import voices_in
from slimwhisper.text import parse_size
from slimwhisper.types import COMPUTE_TYPES

if TYPE_CHECKING:  # the command line starts without torch
    from slimwhisper.api import SlimWhisper
    from slimwhisper.checkpoint.load import Checkpoint

MODEL = "name (see slimwhisper models), .pt file, Hugging Face folder or id"


def boolean(text: str) -> bool:
    """True or False, as whisper's flags take them."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def none_or(kind: Any) -> Any:
    """A type for flags that also take `None`."""

    def parse(text: str) -> Any:
        return None if text == "None" else kind(text)

    parse.__name__ = f"{kind.__name__} or None"
    return parse


def positive(text: str, most: int = 10**9) -> int:
    """An integer from 1 to `most`."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer up to {most}")
    return int(text)


def count(text: str) -> int:
    """A number of threads, or 0; torch ends without a word if it cannot start as many."""
    return 0 if text == "0" else positive(text, 1024)


THREADS: dict[str, Any] = {"type": count, "default": 0, "help": "CPU threads [0: usable cores]"}


def add_main_flags(parser: argparse.ArgumentParser, *, batches: bool) -> None:
    """Add the flags for the model, the CPU threads and, with `batches`, the batch size."""
    parser.add_argument("--model", default="turbo", help=f"{MODEL} [%(default)s]")
    parser.add_argument("--threads", **THREADS)
    if batches:
        help = "windows decoded together [8 to 256 on a GPU, by its free memory; 16 on a CPU]"
        parser.add_argument("--batch_size", type=positive, help=help)


def refusing(parse: Callable[[str], Any], prefix: str = "") -> Callable[[str], Any]:
    """A flag's type from a function that raises ValueError. prefix: not shown of its messages."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(prefix)) from None

    return parsed


def _cache_form(part: str, attention: str) -> dict[str, Any]:
    """A flag's type, a cache form with settings if it has some, and its help."""
    exact, names = names_of(attention), names_of(attention, exact=False)
    approximate = [name for name in names if name not in exact]

    help_text = (
        f"form of the {part}'s cache: {', '.join(exact)}; not exact, with settings such as "
        f"compact:float8=true: {', '.join(approximate)} [the preset's]"
    )
    parse = refusing(lambda text: str(check_form(text, names)))
    return {"type": parse, "metavar": "FORM", "help": help_text}


class FlagGroup:
    """A group of flags with their defaults in the help."""

    def __init__(self, parser: argparse.ArgumentParser, title: str, description: str = "") -> None:
        self._group = parser.add_argument_group(title, description or None)

    def add(self, *names: str, default: Any = None, help: str, **arguments: Any) -> None:
        """Add a flag; its default is appended to its help, unless that ends in brackets."""
        suffix = "" if default is None or help.endswith("]") else " [%(default)s]"
        self._group.add_argument(*names, default=default, help=help + suffix, **arguments)


def add_options(
    groups: Mapping[str, FlagGroup],
    kind: type,
    defaults: Mapping[str, Any] | None = None,
    names: Collection[str] = (),
    **arguments: Any,
) -> None:
    """Add a flag for each field of a class of options that is for one of the groups.

    defaults: the command's own, where they differ from the fields'. names: only of these fields.
    arguments: of `add_argument`.
    """
    for row in fields(kind):
        option_help: OptionHelp = row.metadata["help"]
        parse = option_help.parse
        if option_help.section and (not names or row.name in names):
            groups[option_help.section].add(
                f"--{row.name}",
                type=refusing(parse, f"{row.name}: ") if parse else _kind(str(row.type)),
                default=(defaults or {}).get(row.name, row.default),
                help=option_help.help,
                choices=option_help.choices or None,
                **arguments,
            )


def add_voices(group: FlagGroup, **arguments: Any) -> None:
    """Add `--voices`, a folder of known speakers. arguments: of `add_argument`."""
    group.add(
        "--voices",
        metavar="FOLDER",
        type=refusing(voices_in),
        default=(),
        help="known speakers: a folder with a recording of each voice alone, NAME.wav or of "
        "another format [none]",
        **arguments,
    )


def _kind(annotation: str) -> Callable[[str], Any]:
    """The parser for the flag of a field with this annotation: of its first type, or None."""
    first, *alternatives = annotation.split(" | ")
    kind = KINDS[first]
    return none_or(kind) if "None" in alternatives else kind


def codes(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list, such as "de,en"."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if "," in text and not parts:
        raise argparse.ArgumentTypeError(f"{text!r} has only commas; name something between them")
    return parts


KINDS: dict[str, Callable[[str], Any]] = {
    "bool": boolean,
    "int": int,
    "float": float,
    "str": str,
    "tuple[str, ...]": codes,
}


class StoreExplicit(argparse.Action):
    """Stores the value, and that the user gave it, so that it overrides other defaults."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Store both."""
        setattr(namespace, self.dest, values)
        namespace.explicit = {*getattr(namespace, "explicit", ()), self.dest}


class _Once(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Refuse a second value, instead of forgetting the first."""
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice; merge adapters with PEFT first")
        setattr(namespace, self.dest, values)


MODEL_DIR = {"help": "folder for downloaded models [~/.cache/whisper]"}
ADAPTER: dict[str, Any] = {
    "help": "LoRA adapter in PEFT's format, folder or Hugging Face id, merged into the model",
    "action": _Once,
    "metavar": "PATH or ID",
}


def add_model_flags(parser: argparse.ArgumentParser, *, caches: bool = True) -> None:
    """Add a flag for every argument of `load_model`; without `caches`, none about caches."""
    add = FlagGroup(parser, "model").add
    add("--model_dir", **MODEL_DIR)
    add("--adapter", **ADAPTER)
    add("--device", help="such as cpu, cuda or cuda:1 [a GPU if available]")
    add(
        *("--dtype", "--compute_type"),
        choices=COMPUTE_TYPES,
        help="auto: bfloat16 on CPUs that are fast in it; int8: large matrices in int8, on a CPU "
        "only; for arithmetic and caches [float16 on a GPU, float32 on a CPU]",
    )
    add(
        "--audio_window",
        choices=AUDIO_WINDOWS,
        help="auto: windows as long as their audio, for models that were trained so; near: with "
        "silence up to 20 s, for others; full: up to 30 s [as the model's settings say, else full]",
    )
    if not caches:
        return
    add = FlagGroup(parser, "cache", "see docs/internals/caches.md").add
    add(
        "--cache",
        default="slim",
        action=StoreExplicit,
        type=refusing(check_cache, "cache: "),
        metavar="PRESET or FILE",
        help=f"preset, {', '.join(reversed(PRESETS))}; or a file that calibrate wrote [slim; for a "
        "job of up to 8 windows at a time, baseline on a GPU with room for it]",
    )
    add("--cross_cache", **_cache_form("audio", "cross"))
    add("--self_cache", **_cache_form("text", "self"))
    help = "dtype of slim's caches; fp8: half the bytes, not exact [as --dtype]"
    add("--cache_dtype", choices=CACHE_DTYPES, help=help)
    help = "fail if a form is not exact, instead of falling back [fall back]"
    add("--strict_cache", action="store_true", help=help)
    add("--guard_audio", help="recording of speech on which the guard measures the forms")
    add(
        "--cache_memory",
        type=refusing(parse_size),
        metavar="SIZE, such as 2GB",
        help="memory for the cache of texts, in pages of 16 tokens; if it runs out, windows wait "
        "for each other [the context of every window, or the free memory of a GPU]",
    )


_ARGUMENTS = (
    "model_dir adapter device dtype audio_window cache cross_cache self_cache cache_dtype "
    "strict_cache guard_audio cache_memory"
).split()


def model_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `load_model` that the flags set, without flags that the command lacks."""
    flags = vars(arguments)
    chosen = {name: flags[name] for name in _ARGUMENTS if name in flags}
    if "model_dir" in chosen:
        chosen["download_root"] = chosen.pop("model_dir")
    return chosen


def load_chosen(arguments: argparse.Namespace, **changes: Any) -> "SlimWhisper":
    """Set the CPU threads, and load the model that the flags name; `changes` replace arguments of
    `load_model`.
    """
    chosen = {"name": arguments.model} | model_arguments(arguments) | changes
    return load_with_threads(arguments.threads, **chosen)


def load_with_threads(threads: int, **arguments: Any) -> "SlimWhisper":
    """Set the CPU threads, and load a model. arguments: of `load_model`."""
    with lasting_imports("slimwhisper.loading"):
        from slimwhisper.cores import set_threads
        from slimwhisper.loading import load_model

    set_threads(threads)
    return load_model(**arguments)


def load_weights(arguments: argparse.Namespace) -> "Checkpoint":
    """The checkpoint that the flags name, with its adapter, for commands without an engine."""
    from slimwhisper.formats.load import load_checkpoint

    root = arguments.model_dir
    return load_checkpoint(arguments.model, download_root=root, adapter=arguments.adapter)


@contextmanager
def signals_to(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """A context in which SIGINT and SIGTERM call a function. Only the main thread can catch them:
    elsewhere this does nothing.
    """
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
