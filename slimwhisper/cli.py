"""The command line: parser -> `Options` -> one library call."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from slimwhisper.commands.live.flags import add_live
from slimwhisper.commands.parsers import (
    add_approximations,
    add_bench,
    add_looks,
    add_models,
)
from slimwhisper.commands.serve_flags import add_serve
from slimwhisper.errors import DependencyError, OptionError, SlimWhisperError
from slimwhisper.jobs.flags import add_transcribe
from slimwhisper.text import shown

DESCRIPTION = "Speech to text with Whisper, and a decoder cache up to eight times smaller."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and where to find help."""
        self.exit(2, f"{self.prog}: {shown(message)}; see {self.prog} --help\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """One line, the version."""
        from slimwhisper import __version__

        print(__version__)
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="slimwhisper", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    add_transcribe(commands)
    add_live(commands)
    add_serve(commands)
    add_models(commands)
    add_looks(commands)
    add_bench(commands)
    add_approximations(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0: all went well; 1: something failed; 2: wrong usage; 130, 143: stopped by a signal.
    """
    arguments = build_parser().parse_args(argv)
    try:
        # a command imports what it needs, so that --help and usage errors are fast
        match arguments.command:
            case "transcribe":
                if arguments.engine == "ray":
                    return _transcribe_on_ray(arguments)
                from slimwhisper.jobs.job import run_transcribe

                return run_transcribe(arguments)
            case "live":
                from slimwhisper.commands.live.command import run_live

                return run_live(arguments)
            case "serve":
                try:
                    from slimwhisper.app.command import run_serve
                except ImportError as error:
                    raise DependencyError(
                        f"serve needs {error.name}; pip install 'slimwhisper[app]'"
                    ) from error

                return run_serve(arguments)
            case "models":
                from slimwhisper.commands.models import run_models

                return run_models(arguments)
            case "convert":
                from slimwhisper.commands.conversion.convert import run_convert

                return run_convert(arguments)
            case "inspect":
                from slimwhisper.commands.inspection import run_inspect

                return run_inspect(arguments)
            case "report":
                from slimwhisper.commands.report import run_report

                return run_report(arguments)
            case "bench":
                from slimwhisper.commands.bench import run_bench

                return run_bench(arguments)
            case "tradeoff":
                from slimwhisper.commands.approximate.tradeoff import run_tradeoff

                return run_tradeoff(arguments)
            case "calibrate":
                from slimwhisper.commands.approximate.calibrate import run_calibrate

                return run_calibrate(arguments)
            case "doctor":
                from slimwhisper.commands.doctor import run_doctor

                return run_doctor(arguments)
    except OptionError as error:
        print(f"slimwhisper: {shown(error)}", file=sys.stderr)
        return 2
    except SlimWhisperError as error:
        print(f"slimwhisper: {shown(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("slimwhisper: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    raise AssertionError(arguments.command)


def _transcribe_on_ray(arguments: argparse.Namespace) -> int:
    try:
        from slimwhisper.ray.job import run_transcribe_on_ray
    except ImportError as error:
        raise DependencyError(
            f"--engine ray needs {error.name}; pip install 'slimwhisper[ray]'"
        ) from error
    return run_transcribe_on_ray(arguments)


def entry() -> NoReturn:
    """What the `slimwhisper` command runs."""
    status = main()
    if status > 128:  # threads may still be loading long files that are no longer needed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
