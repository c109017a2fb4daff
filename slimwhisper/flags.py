"""The flags of the `transcribe` command: the `whisper` command's, with its defaults, and ours."""

import argparse
from dataclasses import fields
from typing import Any

from slimwhisper import writers
from slimwhisper.errors import OptionError
from slimwhisper.types import Options

CACHES = ("slim", "option2", "option1", "baseline")
CROSS_CACHES = ("kv", "k", "v", "e", "hybrid")
SELF_CACHES = ("kv", "k", "v", "x")
DTYPES = ("float32", "float16", "bfloat16")
COMPUTE_TYPES = (*DTYPES, "int8")
FORMATS = (*writers.FORMATS, "all")
MODEL = "name, .pt file, Hugging Face folder or id"
# defaults in which the whisper command differs from its own library, and we with it
COMMAND_DEFAULTS = {"temperature": 0.0, "beam_size": 5, "best_of": 5}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}


def boolean(text: str) -> bool:
    """True or False, as whisper's flags take them."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def none_or(kind: type) -> Any:
    """A type for flags that also take `None`."""

    def parse(text: str) -> Any:
        return None if text == "None" else kind(text)

    parse.__name__ = f"{kind.__name__} or None"
    return parse


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Where named models are kept, and the dtype."""
    parser.add_argument("--model_dir", help="where named models are kept [~/.cache/whisper]")
    parser.add_argument(
        "--dtype",
        "--compute_type",
        choices=COMPUTE_TYPES,
        help="arithmetic and caches; int8: large matrices, on a CPU, the rest float32 "
        "[float16 on a GPU, float32 on a CPU]",
    )


class _Group:
    """A group of flags with their defaults in the help."""

    def __init__(self, parser: argparse.ArgumentParser, title: str, words: str = "") -> None:
        self._group = parser.add_argument_group(title, words or None)

    def add(self, *names: str, default: Any = None, help: str, **rest: Any) -> None:
        """A flag; its help ends in its default, unless it says it itself, in brackets."""
        shown = "" if default is None or help.endswith("]") else " [%(default)s]"
        self._group.add_argument(*names, default=default, help=help + shown, **rest)

    def option(self, name: str, kind: Any, help: str, **rest: Any) -> None:
        """A field of `Options`."""
        default = (DEFAULTS | COMMAND_DEFAULTS)[name]
        self.add(f"--{name}", type=kind, default=default, help=help, **rest)


def add_transcribe(commands: Any) -> None:
    """The parser of `transcribe`."""
    p = commands.add_parser(
        "transcribe",
        help="speech in files and folders -> text",
        usage="%(prog)s [flags] audio [audio ...]",
    )
    p.add_argument(
        "audio",
        nargs="+",
        help='files, folders (with all below), "globs/**/*.mp3", or - for a list on standard input',
    )
    p.add_argument("--model", default="turbo", help=f"{MODEL} [%(default)s]")
    add_model_flags(p)
    p.add_argument("--fp16", type=boolean, default=True, help="False: float32 [True on a GPU]")
    p.add_argument("--device", help="such as cpu, cuda or cuda:1 [a GPU where there is one]")
    p.add_argument("--threads", type=int, default=0, help="CPU threads [0: all cores]")
    p.add_argument("--batch_size", type=int, help="windows at a time [64 on a GPU, 16 on a CPU]")
    _add_outputs(p)
    add_cache_flags(p)
    _add_decoding(p)
    _add_prompting(p)
    _add_thresholds(p)
    _add_words(p)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    g = _Group(parser, "outputs", "folder jobs keep a journal there, and resume from it")
    g.add("-o", "--output_dir", default=".", help="where outputs go")
    g.add("-f", "--output_format", default="all", choices=FORMATS, help="")
    g.add("--verbose", type=boolean, default=True, help="print segments")
    g.add("--log_json", type=boolean, default=False, help="print JSON lines, and nothing else")
    for name, words in (
        ("skip_existing", "leave recordings alone whose outputs exist"),
        ("overwrite", "transcribe again what the journal says is done"),
        ("retry_failed", "try again what failed in an earlier run"),
        ("fail_fast", "stop at the first failure"),
        ("allow_truncated", "transcribe what can be read of files that end early"),
    ):
        g.add(f"--{name}", type=boolean, default=False, help=words)
    g.add("--journal", type=none_or_boolean, help="keep one [for folders, globs and lists]")


def none_or_boolean(text: str) -> bool | None:
    """True, False or None."""
    return None if text == "None" else boolean(text)


def cache_arguments(a: argparse.Namespace) -> dict[str, Any]:
    """What the flags of `add_cache_flags` say, as `load_model` takes it."""
    names = ("cache", "cross_cache", "self_cache", "cache_dtype", "strict_cache", "guard_audio")
    return {name: getattr(a, name) for name in names}


def add_cache_flags(parser: argparse.ArgumentParser) -> None:
    """Which caches, and what to do where one is not exact."""
    g = _Group(parser, "cache", "see docs/caches.md")
    g.add("--cache", default="slim", choices=CACHES, help="")
    g.add("--cross-cache", "--cross_cache", choices=CROSS_CACHES, help="the audio's")
    g.add("--self-cache", "--self_cache", choices=SELF_CACHES, help="the text's")
    g.add(
        *("--cache-dtype", "--cache_dtype"),
        choices=("fp8",),
        help="slim's caches in float8: half the bytes, not exact [as --dtype]",
    )
    g.add(
        *("--strict-cache", "--strict_cache"),
        action="store_true",
        default=False,
        help="fail, rather than fall back, where a form is not exact [fall back]",
    )
    g.add("--guard_audio", help="real speech to measure an inverse-based form on")


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    g = _Group(parser, "decoding", "names and defaults are those of the whisper command")
    g.option("task", str, "translate: into English", choices=("transcribe", "translate"))
    g.option("language", none_or(str), "code or name [detected, file by file]")
    g.option("multilingual", boolean, "detect it anew in every window")
    g.option("temperature", float, "the first to decode at; 0: greedy, or beams")
    g.add(
        "--temperature_increment_on_fallback",
        type=none_or(float),
        default=0.2,
        help="steps up to 1 for windows that fail a threshold; None: no fallback",
    )
    g.option("best_of", none_or(int), "samples drawn where the temperature is above 0")
    g.option(
        "beam_size", none_or(int), "beams at temperature 0; None: greedy, several times faster"
    )
    g.option("patience", none_or(float), "beam_size times this many texts end a search [1.0]")
    g.option("length_penalty", none_or(float), "alpha of Google NMT [mean log-probability]")
    g.option("sample_len", none_or(int), "most tokens a window [224]")
    g.option("seed", int, "of sampling")
    g.option("without_timestamps", boolean, "sample text alone")
    g.option("max_initial_timestamp", none_or(float), "seconds, latest first timestamp")
    g.option("suppress_blank", boolean, "no blank at the start")
    g.option(
        "suppress_tokens",
        none_or(str),
        "ids with commas between; -1: symbols that are not spoken",
    )
    g.option("vad_filter", boolean, "leave out what is not speech")
    g.option("parallel", boolean, "decode the speech regions of a file side by side")
    g.option("clip_timestamps", str, "seconds: start,end,start,end,... the last end may lack")


def _add_prompting(parser: argparse.ArgumentParser) -> None:
    g = _Group(parser, "prompting")
    g.option("initial_prompt", none_or(str), "text to condition on")
    g.option("carry_initial_prompt", boolean, "prepend it to every window's prompt")
    g.option("condition_on_previous_text", boolean, "prompt each window with the text so far")
    g.option("prefix", none_or(str), "every window's text begins with it")
    g.option("hotwords", none_or(str), "words to expect, in every window's prompt")


def _add_thresholds(parser: argparse.ArgumentParser) -> None:
    g = _Group(parser, "thresholds")
    g.option("compression_ratio_threshold", none_or(float), "above: the text repeats; fall back")
    g.option("logprob_threshold", none_or(float), "below on average: unsure; fall back")
    g.option("no_speech_threshold", none_or(float), "above, and unsure: silence")
    g.option(
        "hallucination_silence_threshold",
        none_or(float),
        "seconds: skip longer silence around a text that may be invented; with --word_timestamps",
    )


def _add_words(parser: argparse.ArgumentParser) -> None:
    g = _Group(parser, "words", "all take effect with --word_timestamps True alone")
    g.option("word_timestamps", boolean, "when each word is spoken")
    g.option("prepend_punctuations", str, "belongs to the next word")
    g.option("append_punctuations", str, "belongs to the word before")
    g.add("--highlight_words", type=boolean, default=False, help="underline words in srt and vtt")
    g.add("--max_line_width", type=none_or(int), help="characters before a line breaks")
    g.add("--max_line_count", type=none_or(int), help="lines in a subtitle")
    g.add("--max_words_per_line", type=none_or(int), help="not with --max_line_width")


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding options among the parsed arguments. Raises OptionError."""
    options = {name: value for name, value in vars(arguments).items() if name in DEFAULTS}
    options["temperature"] = temperatures(
        arguments.temperature, arguments.temperature_increment_on_fallback
    )
    return options


def temperatures(first: float, increment: float | None) -> float | tuple[float, ...]:
    """The temperatures to try in turn, to the last bit those of the whisper command."""
    if increment is None:
        return first
    if not increment > 0:
        raise OptionError(
            f"--temperature_increment_on_fallback {increment} is not a positive number; "
            "None turns the fallback off"
        )
    import numpy as np

    ladder = tuple(np.arange(first, 1.0 + 1e-6, increment).tolist())
    if not ladder:
        raise OptionError(
            f"--temperature {first} leaves nothing to fall back to below 1; "
            "add --temperature_increment_on_fallback None"
        )
    return ladder


def dtype_of(arguments: argparse.Namespace) -> str | None:
    """--dtype, or what --fp16 asks for."""
    chosen: str | None = arguments.dtype
    return "float32" if chosen is None and not arguments.fp16 else chosen


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the writers that are not at their defaults."""
    chosen = {name: getattr(arguments, name) for name in writers.LAYOUT}
    return {name: value for name, value in chosen.items() if value not in (None, False)}
