"""Ctrl-C and SIGTERM to a job in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folder_job import journal, tree
from tests.support.paths import ROOT

__all__ = ["tree"]

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
sys.exit(main(["transcribe", "in", "-o", "out", "-f", "txt", "--verbose", "False"]))
"""


@pytest.mark.parametrize(
    ("signals", "expected"), [(["SIGINT"], 130), (["SIGINT", "SIGINT"], 130), (["SIGTERM"], 143)]
)
def test_signals(tree: Path, signals: list[str], expected: int) -> None:
    """The first Ctrl-C finishes what is in progress; a second one and SIGTERM stop at once."""
    for number in range(400):
        (tree / f"{number}.wav").write_text("good")
    command = [sys.executable, "-c", CHILD.format(root=str(ROOT))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        said = ""
        for name, after in zip(signals, ("finished 1", "finishing"), strict=False):
            while after not in said:
                said += child.stderr.readline()
            child.send_signal(signal.Signals[name])
        said += child.communicate(timeout=60)[1]
    assert child.returncode == expected and "Traceback" not in said
    assert "stopped early; finished files are saved; run the same command again to resume" in said
    assert not list(Path("out").rglob(".slimwhisper-*"))
    marked = journal()
    assert 1 <= len(marked) < 400
    assert {line["status"] for line in marked} <= {"done", "failed"}
    if signals == ["SIGINT"]:
        assert "finishing " in said and "press Ctrl-C again to stop at once" in said
        written = len(list(Path("out").rglob("*.txt")))
        assert len(marked) == said.count("finished ") - said.count("finished files") == written
