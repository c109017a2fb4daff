"""Other people's suites: slow, and skipped without their checkouts. CONTRIBUTING.md says how."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_nothing_fails_unexplained() -> None:
    if "FOREIGN" not in os.environ:
        pytest.skip("FOREIGN names no folder of checkouts")
    # a process of its own: the parsers are those of the checkouts
    command = [sys.executable, "-m", "tests.foreign"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
