"""Ctrl-C and SIGTERM to a job in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folder_job import journal, tree
from tests.support.paths import ROOT

__all__ = ["tree"]

pytestmark = pytest.mark.usefixtures("many")

CHILD = """
import sys
sys.path.insert(0, {root!r})
from tests.support.fake_model import FakeModel, install
from slimwhisper.cli import main

class Slow(FakeModel):
    def transcribe_many(self, sources, **rest):
        for n, result in enumerate(super().transcribe_many(sources, **rest)):
            yield result
            print("finished", n + 1, file=sys.stderr, flush=True)

install(Slow(ahead=4, delay=0.05), lambda target, key, value: target.__setitem__(key, value))
sys.exit(main(sys.argv[1:]))
"""


def start_child(*arguments: str) -> subprocess.Popen[str]:
    """A job in a process of its own, and its first file finished."""
    command = [sys.executable, "-c", CHILD.format(root=str(ROOT))]
    child = subprocess.Popen(
        [*command, "transcribe", *arguments, "-o", "out", "-f", "txt", "--verbose", "False"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("finished 1"):
            return child
    raise AssertionError("the child finished nothing")


def end(child: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = child.communicate(timeout=60)
    assert not list(Path("out").rglob(".slimwhisper-*"))
    return child.returncode, err


@pytest.fixture
def many(tree: Path) -> None:
    for number in range(400):
        (tree / f"{number}.wav").write_text("good")


def test_ctrl_c_finishes_what_is_in_progress() -> None:
    child = start_child("in")
    child.send_signal(signal.SIGINT)
    status, err = end(child)
    assert status == 130
    assert "slimwhisper: finishing " in err and "press Ctrl-C again to stop at once" in err
    assert "stopped early; finished files are saved; run the same command again to resume" in err
    lines = journal()
    assert 2 <= len(lines) < 400
    finished = err.count("\nfinished") + 1
    assert len(lines) == finished == len(list(Path("out").rglob("*.txt")))


@pytest.mark.parametrize(("signals", "expected"), [(["SIGINT", "SIGINT"], 130), (["SIGTERM"], 143)])
def test_stopping_at_once(signals: list[str], expected: int) -> None:
    child = start_child("in")
    for name in signals:
        child.send_signal(signal.Signals[name])
        if name != signals[-1]:
            assert child.stderr is not None
            while "finishing" not in child.stderr.readline():
                pass
    status, err = end(child)
    assert status == expected
    assert "Traceback" not in err
    assert "stopped early; finished files are saved" in err
    assert {line["status"] for line in journal()} <= {"done", "failed"}
    assert len(journal()) < 400
