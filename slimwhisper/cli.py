"""The command line: parser -> `Options` -> one library call."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import copy
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from slimwhisper.errors import DependencyError, OptionError, SlimWhisperError
from slimwhisper.text import SafeStream, StreamError, did_you_mean, escape_line, install_command

DESCRIPTION = "Speech to text with Whisper, and a decoder cache 5 to 20 times smaller."

# of each command the functions that add its flags and that run it, imported when they are needed
COMMANDS = {
    "transcribe": ("jobs.flags:add_transcribe", "jobs.job:run_transcribe"),
    "align": ("commands.parsers:add_align", "commands.align:run_align"),
    "live": ("commands.live.flags:add_live", "commands.live.command:run_live"),
    "serve": ("commands.parsers:add_serve", "app.command:run_serve"),
    "models": ("commands.parsers:add_models", "commands.models:run_models"),
    "convert": ("commands.parsers:add_convert", "commands.convert:run_convert"),
    "report": ("research.flags:add_report", "research.report:run_report"),
    "doctor": ("commands.parsers:add_doctor", "commands.doctor:run_doctor"),
    "tradeoff": ("research.flags:add_tradeoff", "research.tradeoff:run_tradeoff"),
    "calibrate": ("research.flags:add_calibrate", "research.calibrate:run_calibrate"),
}
OVERVIEW = f"""usage: slimwhisper COMMAND [flags]

{DESCRIPTION}

transcribe:
  transcribe   transcribe audio and video files to text
  align        find the times of a known text in its recording
  live         transcribe a microphone, a pipe or a stream in real time
  serve        a web page, and OpenAI's audio API over HTTP

models and this machine:
  models       list the models that have a name: size, languages, presence
  convert      write a model as an OpenAI .pt file or as a Hugging Face folder
  doctor       check the installation, and how to fix it
  report       compute the memory that each cache takes
  tradeoff     measure what inexact caches cost and save, on your recordings
  calibrate    find the smallest cache within a loss, for --cache FILE

For example: slimwhisper transcribe TALKS -o TEXTS --model turbo
slimwhisper COMMAND --help has a command's flags, --help all has the others too.
"""
# the flags that most people need, of any command
COMMON = """audio text source model device dtype batch_size language task initial_prompt prompt
hotwords beam_size vad_filter output_dir output_format output word_timestamps sentences diarize
allow_url allow_download host port auth api_key allow_origin max_upload max_minutes batch
specs target_loss json""".split()
RAY = "ray.job:run_transcribe_on_ray"
# commands whose result is what they print
PRINTED = ("live", "models", "report", "tradeoff", "doctor")
EXTRAS = {COMMANDS["serve"][1]: ("serve", "app"), RAY: ("--engine ray", "ray")}


class _Help(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Print the common flags; after "all", all of them."""
        print(parser.help_text(values == "all"), end="", file=SafeStream("stdout"))
        parser.exit()


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    def add_parser(self, name: str, **arguments: Any) -> Any:
        """Add a command with the help of the overview, for `shtab`."""
        (help,) = re.findall(rf"^  {name} +(.*)", OVERVIEW, re.M)
        return super().add_parser(name, help=help, **arguments)


class _Store(argparse.Action):
    """Stores the value. `shtab` completes it as the name of a file."""

    complete: ClassVar = {"bash": "_shtab_compgen_files", "zsh": "_files"}
    complete["fish"] = "(__fish_complete_path (commandline -ct))"

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """Flags have underscores, as whisper's; hyphens work too. Help begins with what is common."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, add_help=False)
        self.register("action", None, _Store)
        help = "show this help; all: with all flags"
        names, quiet = ("-h", "--help"), argparse.SUPPRESS
        self.add_argument(*names, action=_Help, nargs="?", metavar="all", default=quiet, help=help)

    def help_text(self, whole: bool) -> str:
        """The help; unless `whole`, where there are many, of the flags that most people need."""
        if self._subparsers:
            return OVERVIEW
        if whole or len(self._actions) <= 10:
            return self.format_help()
        names = " ".join(action.dest.upper() for action in self._get_positional_actions())
        text = argparse.HelpFormatter(self.prog, max_help_position=26)
        text.add_usage(f"{self.prog} [flags] {names}".strip(), (), ())
        text.add_text(self.description)
        shown: list[Any] = [action for action in self._actions if action.dest in COMMON]
        for group in self._action_groups:
            text.start_section(group.title)
            text.add_arguments(_short(action) for action in shown if action.container is group)
            text.end_section()
        text.add_text(f"{self.prog} --help all has all flags.")
        return text.format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for i, word in enumerate(words):
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break
            known = word == "-" or word in self._option_string_actions
            if word[:1] == "-" and not known and os.path.isfile(word):  # noqa: PTH113  (never raises)
                self.error(f"{word} is taken for a flag; write ./{word} for the file")
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
            if self._subparsers and os.path.exists(value):  # noqa: PTH110
                error.message = f"no command; did you mean slimwhisper transcribe {value}?"
            raise

    def error(self, message: str) -> NoReturn:
        """Print one line with the error and how to get help."""
        found = re.search(r"--(\w+): expected one argument$", message)
        if found and isinstance(self.get_default(found[1]), bool):
            message = f"--{found[1]} needs True or False"
        self.exit(2, f"{self.prog}: {escape_line(message)}; see {self.prog} --help\n")


def _short(action: argparse.Action) -> argparse.Action:
    """A flag's row of help in one spelling, without asides and long lists of choices."""
    short = copy(action)
    text, bracket, default = (action.help or "").partition(" [")
    short.help = text.split(";")[0] + bracket + default
    short.option_strings = action.option_strings[-1:]
    if action.option_strings and action.nargs != 0 and not action.metavar:
        short.metavar = "True" if action.default is False else action.dest.split("_")[-1].upper()
    return short


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the version."""
        from slimwhisper import __version__

        print(__version__, file=SafeStream("stdout"))
        parser.exit()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line of one command; None: all of it."""
    parser = _Parser(prog="slimwhisper", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(
        dest="command", required=True, parser_class=_Parser, action=_Commands
    )
    for name in COMMANDS if command is None else [command]:
        _function(COMMANDS[name][0])(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    0: success, or help; 1: something failed; 2: wrong usage; 130, 143: stopped by a signal.
    """
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    parser = build_parser(words[0] if words[0] in COMMANDS else None)
    arguments = parser.parse_args(words)
    command = arguments.command
    on_ray = command == "transcribe" and arguments.engine == "ray"
    if on_ray:  # before Ray is imported: else a job that is stopped could start it again
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    required = command in PRINTED and getattr(arguments, "output", None) is None
    out: Any = SafeStream("stdout", required=required)
    err: Any = SafeStream("stderr")
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = int(_function(RAY if on_ray else COMMANDS[command][1])(arguments))
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


def _function(place: str) -> Callable[[Any], Any]:
    """A function of the package, "module:name", imported only now: usage errors stay fast."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(f"slimwhisper.{module}"), name)
    except ImportError as error:
        if place not in EXTRAS:
            raise
        what, extra = EXTRAS[place]
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
