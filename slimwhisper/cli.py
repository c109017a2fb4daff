"""The command line: parser -> Options -> one library call."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import Any, NoReturn

from slimwhisper import writers
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.types import Options

CACHES = ("slim", "option2", "option1", "baseline")
CROSS_CACHES = ("kv", "k", "v", "e", "hybrid")
SELF_CACHES = ("kv", "k", "v", "x")
DTYPES = ("float32", "float16", "bfloat16")
FORMATS = (*writers.FORMATS, "all")
MODEL = "name, .pt file, Hugging Face folder or id"


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def _none_or(kind: type) -> Any:
    def parse(text: str) -> Any:
        return None if text == "None" else kind(text)

    parse.__name__ = f"{kind.__name__} or None"
    return parse


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the way to more."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_dir", help="where named models are kept [~/.cache/whisper]")
    parser.add_argument(
        "--dtype",
        "--compute_type",
        choices=DTYPES,
        help="arithmetic and caches [float16 on a GPU, float32 on a CPU]",
    )


def _add_transcribe(commands: Any) -> None:
    p = commands.add_parser("transcribe", help="speech in files and folders -> text")
    default = Options()
    p.add_argument("audio", nargs="+", help="audio or video files, and folders of them")
    p.add_argument("--model", default="turbo", help=f"{MODEL} [%(default)s]")
    _add_model(p)
    p.add_argument("--device", help="such as cpu, cuda or cuda:1 [a GPU where there is one]")
    p.add_argument("--threads", type=int, help="CPU threads [all cores]")
    p.add_argument("-o", "--output_dir", default=".", help="where outputs go [%(default)s]")
    p.add_argument("-f", "--output_format", default="all", choices=FORMATS, help="[%(default)s]")
    p.add_argument("--verbose", type=_bool, default=True, help="print segments [%(default)s]")
    p.add_argument("--batch_size", type=int, help="windows at a time [64 on a GPU, 8 on a CPU]")
    p.add_argument(
        "--allow_truncated",
        type=_bool,
        default=False,
        help="transcribe what can be read of files that end early [%(default)s]",
    )

    cache = p.add_argument_group("cache", "see docs/caches.md")
    cache.add_argument("--cache", default="slim", choices=CACHES, help="[%(default)s]")
    cache.add_argument("--cross-cache", "--cross_cache", choices=CROSS_CACHES, help="the audio's")
    cache.add_argument("--self-cache", "--self_cache", choices=SELF_CACHES, help="the text's")
    cache.add_argument(
        "--strict-cache",
        "--strict_cache",
        action="store_true",
        default=False,
        help="fail, rather than fall back, where a form is not exact",
    )
    cache.add_argument("--guard_audio", help="real speech to measure an inverse-based form on")

    d = p.add_argument_group("decoding", "names and defaults are those of the whisper command")
    d.add_argument(
        "--task",
        default=default.task,
        choices=("transcribe", "translate"),
        help="translate: into English [%(default)s]",
    )
    d.add_argument("--language", type=_none_or(str), help="code or name [detected, file by file]")
    d.add_argument(
        "--temperature", type=float, default=default.temperature, help="0, greedy, alone"
    )
    d.add_argument("--sample_len", type=_none_or(int), help="most tokens a window [224]")
    d.add_argument("--initial_prompt", type=_none_or(str), help="text to condition on")
    for name, words in (
        ("carry_initial_prompt", "prepend it to every window's prompt"),
        ("condition_on_previous_text", "prompt each window with the text so far"),
        ("without_timestamps", "sample text alone"),
        ("suppress_blank", "no blank at the start"),
    ):
        d.add_argument(
            f"--{name}", type=_bool, default=getattr(default, name), help=f"{words} [%(default)s]"
        )
    d.add_argument(
        "--suppress_tokens",
        type=_none_or(str),
        default=default.suppress_tokens,
        help="ids with commas between; -1: symbols that are not spoken [%(default)s]",
    )
    for name, words in (
        ("max_initial_timestamp", "seconds, latest first timestamp"),
        ("compression_ratio_threshold", "reported; no fallback at temperature 0"),
        ("logprob_threshold", "a surer text is no silence"),
        ("no_speech_threshold", "likelier silence is skipped"),
    ):
        d.add_argument(
            f"--{name}",
            type=_none_or(float),
            default=getattr(default, name),
            help=f"{words} [%(default)s]",
        )


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="slimwhisper", description="Whisper with a several times smaller cache.")
    parser.add_argument("--version", action="version", version=version("slimwhisper"))
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_transcribe(commands)

    p = commands.add_parser("inspect", help="which cache forms are exact for a model")
    p.add_argument("model", help=MODEL)
    _add_model(p)
    p.add_argument("--audio", help="real speech to measure on [bursts of noise]")
    p.add_argument("--json", action="store_true", help="for machines")

    p = commands.add_parser("report", help="the memory that each cache takes, from the dimensions")
    p.add_argument("model", nargs="*", help="names, files or folders [the paper's five]")
    p.add_argument("--batch", type=int, default=64, help="windows decoded together [64]")
    p.add_argument("--dtype", choices=DTYPES, default="float16", help="of the caches [float16]")
    p.add_argument("--json", action="store_true", help="for machines")

    p = commands.add_parser("doctor", help="what is installed, what works, what to do")
    p.add_argument("--json", action="store_true", help="for machines")
    return parser


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding options among the parsed arguments."""
    names = {f.name for f in fields(Options)}
    return {name: value for name, value in vars(arguments).items() if name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0: all went well, 1: something failed, 2: wrong usage."""
    arguments = build_parser().parse_args(argv)
    try:
        # a command imports what it needs, so that --help and mistakes are quick
        match arguments.command:
            case "transcribe":
                from slimwhisper.jobs import run_transcribe

                return run_transcribe(arguments, options_of(arguments))
            case "inspect":
                from slimwhisper.inspection import run_inspect

                return run_inspect(arguments)
            case "report":
                from slimwhisper.report_table import run_report

                return run_report(arguments)
            case "doctor":
                from slimwhisper.doctor import run_doctor

                return run_doctor(arguments)
    except OptionError as error:
        print(f"slimwhisper: {error}", file=sys.stderr)
        return 2
    except SlimWhisperError as error:
        print(f"slimwhisper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("slimwhisper: interrupted; files already reported are written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    raise AssertionError(arguments.command)


if __name__ == "__main__":
    sys.exit(main())
