"""The picture of the packages is that of the imports, and old import paths still work."""

import subprocess
import sys

from tests.support.paths import ROOT


def test_the_picture_is_up_to_date() -> None:
    command = [sys.executable, "docs/architecture_svg.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
