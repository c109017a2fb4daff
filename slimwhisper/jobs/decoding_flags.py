"""The decoding flags of the `transcribe` command: the fields of `Options`, by the same names."""

import argparse
from dataclasses import fields
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.flags import FlagGroup, boolean, none_or, positive
from slimwhisper.speakers.choice import BACKENDS, named_file
from slimwhisper.types import ON_FAILURE, Options

# where the whisper command and its library have different defaults, we follow the command
COMMAND_DEFAULTS = {"temperature": 0.0, "beam_size": 5, "best_of": 5}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Options)}


def _option(group: FlagGroup, name: str, kind: Any, help: str, **rest: Any) -> None:
    """A flag for a field of `Options`."""
    default = (DEFAULTS | COMMAND_DEFAULTS)[name]
    group.add(f"--{name}", type=kind, action=_Given, default=default, help=help, **rest)


class _Given(argparse.Action):
    """Stores the value, and that the user gave it: it overrides what came with the model."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*getattr(namespace, "given", ()), self.dest}


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add them all."""
    _add_decoding(parser)
    _add_prompting(parser)
    _add_thresholds(parser)
    _add_words(parser)
    _add_speakers(parser)


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "decoding", "same names and defaults as the whisper command")
    _option(
        g,
        "task",
        str,
        "translate into English, or transcribe in the language spoken",
        choices=("transcribe", "translate"),
    )
    _option(g, "language", none_or(str), "language code or name [detected for each file]")
    _option(g, "languages", codes, "languages to choose from, such as de,en [all]")
    _option(g, "multilingual", boolean, "detect the language of every window")
    _add_search(g)
    _option(g, "without_timestamps", boolean, "decode text without timestamps")
    _option(
        g, "max_initial_timestamp", none_or(float), "latest possible first timestamp, in seconds"
    )
    _option(g, "suppress_blank", boolean, "do not start with a blank")
    _option(
        g,
        "suppress_tokens",
        none_or(str),
        "comma-separated token ids; -1 means symbols that are not spoken",
    )
    _option(g, "token_logprobs", boolean, "write the log-probability of every token, in json")
    _option(g, "vad_filter", boolean, "skip audio without speech")
    _option(g, "parallel", boolean, "decode the speech regions of each file in parallel")
    _add_speech(g)
    _option(
        g,
        "clip_timestamps",
        str,
        "clips to transcribe, in seconds: start,end,start,end,...; the last end is optional",
    )


def _add_speech(g: FlagGroup) -> None:
    _option(
        g,
        "vad_threshold",
        float,
        "probability from which a sound is speech, for --vad_filter and --parallel",
    )
    _option(
        g,
        "vad_min_silence_duration_ms",
        none_or(int),
        "milliseconds of silence that end speech [2000; with --parallel, 300]",
    )
    _option(
        g,
        "vad_speech_pad_ms",
        none_or(int),
        "milliseconds added to speech on both sides [400; with --parallel, 200]",
    )


def codes(text: str) -> tuple[str, ...]:
    """The parts of a list with commas between, such as "de,en"."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _add_search(g: FlagGroup) -> None:
    _option(g, "temperature", float, "first temperature to try; 0 means greedy or beam search")
    g.add(
        "--temperature_increment_on_fallback",
        type=none_or(float),
        default=0.2,
        help="step to the next temperature, up to 1, when a window fails a threshold; "
        "None disables the fallback",
    )
    _option(g, "best_of", none_or(int), "samples per window at temperatures above 0")
    _option(
        g,
        "beam_size",
        none_or(int),
        "beams at temperature 0; None means greedy search, several times faster",
    )
    _option(
        g,
        "patience",
        none_or(float),
        "stop a search after beam_size times this many finished texts [1.0]",
    )
    _option(
        g,
        "length_penalty",
        none_or(float),
        "alpha of the Google NMT length penalty [rank by mean log-probability]",
    )
    _option(g, "sample_len", none_or(int), "maximum number of tokens per window [224]")
    _option(g, "seed", int, "random seed for sampling")


def _add_prompting(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "prompting")
    _option(g, "initial_prompt", none_or(str), "text to condition the first window on")
    _option(
        g, "carry_initial_prompt", boolean, "prepend --initial_prompt to the prompt of every window"
    )
    _option(g, "condition_on_previous_text", boolean, "prompt each window with the preceding text")
    _option(g, "prefix", none_or(str), "text that every window begins with")
    _option(g, "hotwords", none_or(str), "expected words, added to the prompt of every window")
    _option(
        g,
        "expected",
        none_or(str),
        "text file that the recordings follow, or a folder of NAME.txt: the same text, faster; "
        "without beams [none]",
    )


def _add_thresholds(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "thresholds")
    _option(
        g,
        "compression_ratio_threshold",
        none_or(float),
        "fall back if the text compresses better than this, which means it repeats itself",
    )
    _option(
        g, "logprob_threshold", none_or(float), "fall back if the average log-probability is lower"
    )
    _option(
        g,
        "no_speech_threshold",
        none_or(float),
        "treat a window as silent if its no-speech probability is higher "
        "and it fails --logprob_threshold",
    )
    _option(
        g,
        "hallucination_silence_threshold",
        none_or(float),
        "skip silence longer than this many seconds around text that may be hallucinated; "
        "requires --word_timestamps",
    )
    _add_trust(g)


def _add_trust(g: FlagGroup) -> None:
    _option(
        g,
        "on_failure",
        str,
        "which text to keep if all temperatures fail a threshold: the last, as whisper does, "
        "or the likeliest one that does not repeat itself (best)",
        choices=ON_FAILURE,
    )
    _option(g, "check", boolean, "decode flagged windows again and keep the better text")


def _add_words(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "words", "the other flags require --word_timestamps True")
    _option(g, "word_timestamps", boolean, "find the start and end of each word")
    _option(
        g,
        "sentences",
        boolean,
        "make each segment a sentence, or a part of one, that can be read as a subtitle; "
        "implies --word_timestamps True",
    )
    _option(g, "prepend_punctuations", str, "punctuation to attach to the next word")
    _option(g, "append_punctuations", str, "punctuation to attach to the previous word")
    g.add(
        "--highlight_words",
        type=boolean,
        default=False,
        help="underline each word as it is spoken, in srt and vtt; colour it, in ass",
    )
    g.add("--max_line_width", type=none_or(int), help="maximum number of characters per line")
    g.add("--max_line_count", type=none_or(int), help="maximum number of lines per subtitle")
    g.add(
        "--max_words_per_line",
        type=none_or(int),
        help="maximum number of words per line; ignored with --max_line_width",
    )


def _add_speakers(parser: argparse.ArgumentParser) -> None:
    g = FlagGroup(parser, "speakers", "the others require --diarize; docs/speakers.md")
    _option(
        g,
        "diarize",
        none_or(str),
        f"find who spoke: {', '.join(BACKENDS)}, an .rttm file, or a folder of NAME.rttm [no]",
    )
    _option(g, "speakers", none_or(positive), "how many people speak [found]")
    g.add(
        "--known_speaker",
        dest="known_speakers",
        metavar="NAME=FILE",
        type=_named_file,
        action=_Collect,
        default=(),
        help="recording of one voice, by which this speaker is recognised; repeat it for others "
        "[none]",
    )


def _named_file(text: str) -> tuple[str, str]:
    try:
        return named_file(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Collect(argparse.Action):
    """Adds the value to a tuple."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), values))


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding options from the parsed arguments: those given, and the command's defaults where
    they are not the library's. Raises OptionError.
    """
    given = getattr(arguments, "given", ())
    drafts = getattr(arguments, "draft", None) or arguments.expected
    if drafts is not None and "beam_size" not in given:
        arguments.beam_size = None  # drafts are for greedy decoding
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in DEFAULTS and (name in given or value != DEFAULTS[name])
    }
    options["temperature"] = temperatures(
        arguments.temperature, arguments.temperature_increment_on_fallback
    )
    return options


def changed(options: dict[str, Any]) -> dict[str, Any]:
    """The decoding options that differ from the library's defaults."""
    return {name: value for name, value in options.items() if value != DEFAULTS[name]}


def temperatures(first: float, increment: float | None) -> float | tuple[float, ...]:
    """The temperatures to try in turn, bit for bit those of the whisper command."""
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
