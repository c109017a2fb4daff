"""The flags of the `transcribe` command: the `whisper` command's, with its defaults, and ours."""

import argparse
from dataclasses import fields
from typing import Any

from slimwhisper import writers
from slimwhisper.errors import OptionError
from slimwhisper.flags import (
    MODEL,
    FlagGroup,
    add_model_flags,
    boolean,
    none_or,
)
from slimwhisper.types import Options

# defaults in which the whisper command differs from its own library, and we with it
COMMAND_DEFAULTS = {"temperature": 0.0, "beam_size": 5, "best_of": 5}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}


def _option(group: FlagGroup, name: str, kind: Any, help: str, **rest: Any) -> None:
    """A flag for a field of `Options`."""
    default = (DEFAULTS | COMMAND_DEFAULTS)[name]
    group.add(f"--{name}", type=kind, default=default, help=help, **rest)


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
    p.add_argument("--fp16", type=boolean, default=True, help="False: float32 [True on a GPU]")
    p.add_argument("--threads", type=int, default=0, help="CPU threads [0: all cores]")
    p.add_argument("--batch_size", type=int, help="windows at a time [64 on a GPU, 16 on a CPU]")
    _add_outputs(p)
    add_model_flags(p)
    _add_decoding(p)
    _add_prompting(p)
    _add_thresholds(p)
    _add_words(p)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "outputs", "folder jobs keep a journal there, and resume from it")
    g.add("-o", "--output_dir", default=".", help="where outputs go")
    g.add("-f", "--output_format", default="all", choices=(*writers.FORMATS, "all"), help="")
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
    g.add("--journal", type=none_or(boolean), help="keep one [for folders, globs and lists]")


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "decoding", "names and defaults are those of the whisper command")
    _option(g, "task", str, "translate: into English", choices=("transcribe", "translate"))
    _option(g, "language", none_or(str), "code or name [detected, file by file]")
    _option(g, "multilingual", boolean, "detect it anew in every window")
    _option(g, "temperature", float, "the first to decode at; 0: greedy, or beams")
    g.add(
        "--temperature_increment_on_fallback",
        type=none_or(float),
        default=0.2,
        help="steps up to 1 for windows that fail a threshold; None: no fallback",
    )
    _option(g, "best_of", none_or(int), "samples drawn where the temperature is above 0")
    _option(
        g, "beam_size", none_or(int), "beams at temperature 0; None: greedy, several times faster"
    )
    _option(g, "patience", none_or(float), "beam_size times this many texts end a search [1.0]")
    _option(g, "length_penalty", none_or(float), "alpha of Google NMT [mean log-probability]")
    _option(g, "sample_len", none_or(int), "most tokens a window [224]")
    _option(g, "seed", int, "of sampling")
    _option(g, "without_timestamps", boolean, "sample text alone")
    _option(g, "max_initial_timestamp", none_or(float), "seconds, latest first timestamp")
    _option(g, "suppress_blank", boolean, "no blank at the start")
    _option(
        g,
        "suppress_tokens",
        none_or(str),
        "ids with commas between; -1: symbols that are not spoken",
    )
    _option(g, "vad_filter", boolean, "leave out what is not speech")
    _option(g, "parallel", boolean, "decode the speech regions of a file side by side")
    _option(g, "clip_timestamps", str, "seconds: start,end,start,end,... the last end may lack")


def _add_prompting(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "prompting")
    _option(g, "initial_prompt", none_or(str), "text to condition on")
    _option(g, "carry_initial_prompt", boolean, "prepend it to every window's prompt")
    _option(g, "condition_on_previous_text", boolean, "prompt each window with the text so far")
    _option(g, "prefix", none_or(str), "every window's text begins with it")
    _option(g, "hotwords", none_or(str), "words to expect, in every window's prompt")


def _add_thresholds(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "thresholds")
    _option(g, "compression_ratio_threshold", none_or(float), "above: the text repeats; fall back")
    _option(g, "logprob_threshold", none_or(float), "below on average: unsure; fall back")
    _option(g, "no_speech_threshold", none_or(float), "above, and unsure: silence")
    _option(
        g,
        "hallucination_silence_threshold",
        none_or(float),
        "seconds: skip longer silence around a text that may be invented; with --word_timestamps",
    )


def _add_words(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "words", "all take effect with --word_timestamps True alone")
    _option(g, "word_timestamps", boolean, "when each word is spoken")
    _option(g, "prepend_punctuations", str, "belongs to the next word")
    _option(g, "append_punctuations", str, "belongs to the word before")
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


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the writers that are not at their defaults."""
    chosen = {name: getattr(arguments, name) for name in writers.LAYOUT}
    return {name: value for name, value in chosen.items() if value not in (None, False)}


def dtype_of(arguments: argparse.Namespace) -> str | None:
    """--dtype, or what --fp16 asks for."""
    chosen: str | None = arguments.dtype
    return "float32" if chosen is None and not arguments.fp16 else chosen
