"""The command line: parser -> `Options` -> one library call."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any, NoReturn

from slimwhisper.commands.live.flags import add_live
from slimwhisper.commands.parsers import (
    add_align,
    add_approximations,
    add_bench,
    add_models,
    add_reports,
)
from slimwhisper.commands.serve_flags import add_serve
from slimwhisper.errors import DependencyError, OptionError, SlimWhisperError
from slimwhisper.jobs.flags import add_transcribe
from slimwhisper.text import (
    SafeStream,
    StreamError,
    did_you_mean,
    escape_line,
    install_command,
)

DESCRIPTION = "Speech to text with Whisper, and a decoder cache about twenty times smaller."

RUN = {  # module and function of each command
    "transcribe": ("slimwhisper.jobs.job", "run_transcribe"),
    "transcribe on ray": ("slimwhisper.ray.job", "run_transcribe_on_ray"),
    "align": ("slimwhisper.commands.align", "run_align"),
    "live": ("slimwhisper.commands.live.command", "run_live"),
    "serve": ("slimwhisper.app.command", "run_serve"),
    "models": ("slimwhisper.commands.models", "run_models"),
    "convert": ("slimwhisper.commands.conversion.convert", "run_convert"),
    "report": ("slimwhisper.commands.report", "run_report"),
    "bench": ("slimwhisper.commands.bench", "run_bench"),
    "tradeoff": ("slimwhisper.commands.approximate.tradeoff", "run_tradeoff"),
    "calibrate": ("slimwhisper.commands.approximate.calibrate", "run_calibrate"),
    "doctor": ("slimwhisper.commands.doctor", "run_doctor"),
}
# commands whose result is what they print
PRINTED = ("live", "models", "inspect", "report", "bench", "tradeoff", "doctor")
EXTRAS = {"serve": ("serve", "app"), "transcribe on ray": ("--engine ray", "ray")}


class _Parser(argparse.ArgumentParser):
    """Flags have underscores, as whisper's; hyphens work too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for i, word in enumerate(words):
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break
            name, equals, value = word[2:].partition("=")
            if word.startswith("--") and " " not in name:
                flag = f"--{name.replace('-', '_')}"
                words[i] = f"{flag}{equals}{value}"
                if not any(each.startswith(flag) for each in flags):
                    self.error(f"unrecognized arguments: {flag}{did_you_mean(flag, flags, '--')}")
        return super().parse_known_args(words, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        """Print one line with the error and how to get help."""
        self.exit(2, f"{self.prog}: {escape_line(message)}; see {self.prog} --help\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the version."""
        from slimwhisper import __version__

        print(__version__, file=SafeStream("stdout"))
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="slimwhisper", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    add_transcribe(commands)
    add_align(commands)
    add_live(commands)
    add_serve(commands)
    add_models(commands)
    add_reports(commands)
    add_bench(commands)
    add_approximations(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    0: success, or help; 1: something failed; 2: wrong usage; 130, 143: stopped by a signal.
    """
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help()
        return 0
    arguments = parser.parse_args(argv)
    command = arguments.command
    if command == "transcribe" and arguments.engine == "ray":
        command = "transcribe on ray"
    required = command in PRINTED and getattr(arguments, "output", None) is None
    out: Any = SafeStream("stdout", required=required)
    err: Any = SafeStream("stderr")
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = int(_function(command)(arguments))
            out.flush()
            return status
        except SlimWhisperError as error:
            print(f"slimwhisper: {escape_line(error)}", file=sys.stderr)
            return 2 if isinstance(error, OptionError) else 1
        except KeyboardInterrupt:
            print("slimwhisper: interrupted", file=sys.stderr)
            return 130
        except StreamError as error:
            if not isinstance(error.__cause__, BrokenPipeError):
                problem = f"standard output cannot be written ({error}); free some space there"
                print(f"slimwhisper: {problem}", file=sys.stderr)
            return 1


def _function(command: str) -> Callable[[argparse.Namespace], int]:
    """The function that runs a command, imported only now: --help and usage errors stay fast."""
    module, name = RUN[command]
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        if command not in EXTRAS:
            raise
        what, extra = EXTRAS[command]
        raise DependencyError(f"{what} needs {error.name}; {install_command(extra)}") from error


def entry() -> NoReturn:
    """The entry point of the `slimwhisper` command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: no other file may get this number, as libraries write there
            os.open(os.devnull, os.O_RDWR)
    try:
        status = main()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):  # what waits would fail again, at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if status > 128:  # threads may still be loading long files that are no longer needed
        os._exit(status)
    sys.exit(status)
