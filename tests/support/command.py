"""The command line, called from within a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from slimwhisper import cli


class Run:
    """Exit status and what was printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        capsys.readouterr()
        try:
            self.status = cli.main(list(arguments))
        except SystemExit as stop:  # argparse
            self.status = int(stop.code or 0)
        self.out, self.err = capsys.readouterr()


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter's answer."""
    command, variables = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)


RunCLI = Callable[..., Run]  # the fixture `run_cli`, which needs no more than the arguments


def die(_: object) -> None:
    """Ends this process, as the system does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
