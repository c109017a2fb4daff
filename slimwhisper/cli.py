"""The command line: parser -> `Options` -> one library call."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from slimwhisper.bench_flags import add_bench
from slimwhisper.errors import DependencyError, OptionError, SlimWhisperError
from slimwhisper.flags import DTYPES, MODEL, add_model_flags, add_transcribe
from slimwhisper.serve_flags import add_serve
from slimwhisper.text import shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the way to more."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="slimwhisper", description="Whisper with a several times smaller cache.")
    parser.add_argument("--version", action="version", version=version("slimwhisper"))
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    add_transcribe(commands)

    add_serve(commands)

    p = commands.add_parser("inspect", help="which cache forms are exact for a model")
    p.add_argument("model", help=MODEL)
    add_model_flags(p)
    p.add_argument("--audio", help="real speech to measure on [bursts of noise]")
    p.add_argument("--json", action="store_true", help="for machines")

    p = commands.add_parser("report", help="the memory that each cache takes, from the dimensions")
    p.add_argument("model", nargs="*", help="names, files or folders [the paper's five]")
    p.add_argument("--batch", type=int, default=64, help="windows decoded together [64]")
    p.add_argument("--dtype", choices=DTYPES, default="float16", help="of the caches [float16]")
    p.add_argument("--json", action="store_true", help="for machines")

    add_bench(commands)

    p = commands.add_parser("doctor", help="what is installed, what works, what to do")
    p.add_argument("--json", action="store_true", help="for machines")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0: all went well; 1: something failed; 2: wrong usage; 130, 143: stopped by a signal.
    """
    arguments = build_parser().parse_args(argv)
    try:
        # a command imports what it needs, so that --help and mistakes are quick
        match arguments.command:
            case "transcribe":
                from slimwhisper.jobs import run_transcribe

                return run_transcribe(arguments)
            case "serve":
                try:
                    from slimwhisper.app.command import run_serve
                except ImportError as error:
                    raise DependencyError(
                        f"serve needs {error.name}; pip install 'slimwhisper[app]'"
                    ) from error

                return run_serve(arguments)
            case "inspect":
                from slimwhisper.inspection import run_inspect

                return run_inspect(arguments)
            case "report":
                from slimwhisper.report_table import run_report

                return run_report(arguments)
            case "bench":
                from slimwhisper.benchmark import run_bench

                return run_bench(arguments)
            case "doctor":
                from slimwhisper.doctor import run_doctor

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


def entry() -> NoReturn:
    """What the `slimwhisper` command runs."""
    status = main()
    if status > 128:  # threads may be decoding long files; nobody waits for what they load
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
