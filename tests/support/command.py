"""The command line, called from within a test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

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


def python(
    *arguments: str, stdin: IO[Any] | None = None, without: Iterable[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter's answer. without: names of variables of the environment."""
    command = [sys.executable, *arguments]
    variables = {k: v for k, v in os.environ.items() if k not in without} | environment
    return subprocess.run(
        command, stdin=stdin, env=variables, capture_output=True, text=True, timeout=600
    )


RunCLI = Callable[..., Run]  # the fixture `run_cli`, which needs no more than the arguments
