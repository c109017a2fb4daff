"""The modules that run while `slimwhisper transcribe` reads one WAV: run as a script.

    python tests/support/one_wav.py WAV FOLDER

Prints three lines: the modules of the package of which a function runs, but for what runs while
modules are imported; the modules that are imported, have functions, and run none; and, after the
command with times of words, whether Python looks for garbage, whether what was imported is left out
of that, and all modules.
"""

import gc
import sys
import threading
from types import FrameType, FunctionType
from typing import Any

PACKAGE = "slimwhisper"
ran = {"__main__"}


def note(frame: FrameType, event: str, argument: object) -> None:
    """Note the module of a call, unless a module of the package is being imported."""
    name = frame.f_globals.get("__name__", "")
    if event != "call" or name in ran or not name.startswith(PACKAGE):
        return
    caller: FrameType | None = frame
    while caller is not None:
        importing = caller.f_globals.get("__name__", "").startswith(PACKAGE)
        if importing and caller.f_code.co_name == "<module>":
            return
        caller = caller.f_back
    ran.add(name)


def has_functions(name: str) -> bool:
    """Whether a module defines functions or methods."""

    def own(value: Any) -> bool:
        return getattr(value, "__module__", None) == name

    values = [value for value in vars(sys.modules[name]).values() if own(value)]
    methods = [m for v in values if isinstance(v, type) for m in vars(v).values()]
    return any(isinstance(v, FunctionType) and own(v) for v in [*values, *methods])


def main() -> None:
    wav, folder = sys.argv[1:]
    command = ["transcribe", wav, "--model", "digits", "--device", "cpu", "-o", folder]
    import torch  # noqa: F401  # nothing of the package runs

    threading.setprofile(note)
    sys.setprofile(note)
    from slimwhisper.cli import main as slimwhisper

    assert slimwhisper(command) == 0
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    imported = {name for name in sys.modules if name.startswith(PACKAGE)}
    print(*sorted(ran & imported))
    print(*sorted(name for name in imported - ran if has_functions(name)))
    assert slimwhisper([*command, "--word_timestamps", "True"]) == 0
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, *sys.modules)


if __name__ == "__main__":
    main()
