"""Runs a program that was written for faster-whisper, with `slimwhisper.faster_whisper` in its
place, whether or not that package is installed:

    python -m slimwhisper.as_faster_whisper PROGRAM [ARGUMENTS]

PROGRAM is a Python file, an installed command such as whisper-ctranslate2, or a module such as
wyoming_faster_whisper.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from slimwhisper._lazy import is_installed

NAMES = ("audio", "tokenizer", "transcribe", "utils", "vad", "version")
MODULES = {f"faster_whisper.{name}": name for name in NAMES}  # theirs: the name of ours
MODULES["whisper_live.transcriber.transcriber_faster_whisper"] = "whisper_live"


def replace_faster_whisper() -> None:
    """From now on `import faster_whisper` gives `slimwhisper.faster_whisper`."""
    package = "slimwhisper.faster_whisper"
    sys.modules["faster_whisper"] = import_module(package)
    for theirs, ours in MODULES.items():
        sys.modules[theirs] = import_module(f"{package}.{ours}")


def main(arguments: Sequence[str] | None = None) -> int | str | None:
    """Run a program; returns what it returns. arguments: its name and its arguments; None: of this
    process.
    """
    sys.argv = list(sys.argv[1:] if arguments is None else arguments)
    if not sys.argv or sys.argv[0] in ("-h", "--help"):
        print(__doc__, file=sys.stdout if sys.argv else sys.stderr)
        return 0 if sys.argv else 2
    program = sys.argv[0]
    commands = entry_points(group="console_scripts", name=program)
    is_file = Path(program).is_file()
    if not (is_file or commands or is_installed(program)):
        remedy = "install it, or check the name"
        print(f"{program}: no such file, command or module here; {remedy}", file=sys.stderr)
        return 2
    replace_faster_whisper()
    if is_file:
        sys.path.insert(0, str(Path(program).resolve().parent))
        runpy.run_path(program, run_name="__main__")
    elif commands:
        (command,) = commands
        return command.load()()
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
