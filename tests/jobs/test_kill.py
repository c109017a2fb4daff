"""A job that is killed at random moments and resumed ends as if nothing had happened; and one that
is interrupted finishes what it has begun.
"""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slimwhisper.outputs import formats_of
from tests.support.folder_job import journal
from tests.support.kills import Kills, forking, journal_lines
from tests.support.paths import ROOT


def plant(folder: Path) -> tuple[set[Path], set[Path]]:
    """250 recordings in a nested tree, every 20th of them bad."""
    good, bad = set(), set()
    for number in range(250):
        place = folder.joinpath(*str(number % 27).zfill(2), "two words" if number % 3 else "")
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"talk.{number}.wav"
        path.write_text(f"bad {number}" if number % 20 == 7 else f"text {number}")
        (bad if number % 20 == 7 else good).add(path)
    return good, bad


@pytest.mark.slow
def test_fifty_kills(tmp_path: Path) -> None:
    good, bad = plant(tmp_path / "in")
    logs, out, undisturbed = (tmp_path / name for name in ("logs", "out", "undisturbed"))
    logs.mkdir()
    common = ("transcribe", str(tmp_path / "in"), "--verbose", "False", "-f", "all")
    with forking(*common, "-o", str(undisturbed)) as start:
        assert start(logs / "undisturbed").wait() == 1
    assert len(journal_lines(undisturbed)) == 250
    with forking(*common, "-o", str(out)) as start:
        kills = Kills(start, tmp_path / "in", out, logs, formats_of("all"))
        rng = random.Random(1)
        kills.run(rng.uniform(0, 0.06) for _ in range(50))
    kills.check(good, bad, undisturbed)
    assert kills.kills >= 10  # 50, unless the machine is so slow to kill that the job ends before


CHILD = """
import sys, types
sys.path.insert(0, {root!r})
sys.modules["slimwhisper.cores"] = types.SimpleNamespace(set_threads=int)  # not torch's
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
    ("signals", "expected"),
    [
        pytest.param(["SIGINT"], 130, marks=pytest.mark.slow),
        (["SIGINT", "SIGINT"], 130),
        (["SIGTERM"], 143),
    ],
)
def test_signals(tree: Path, signals: list[str], expected: int) -> None:
    """The first Ctrl-C finishes what is in progress; a second one and SIGTERM stop immediately."""
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
        said += child.stderr.read()  # `communicate` loses what `readline` has read ahead
        child.wait(timeout=60)
    assert child.returncode == expected and "Traceback" not in said
    assert "stopped early; finished files are saved; run the same command again to resume" in said
    assert not list(Path("out").rglob(".slimwhisper-*"))
    marked = journal()
    assert 1 <= len(marked) < 400
    assert {line["status"] for line in marked} <= {"done", "failed"}
    if signals == ["SIGINT"]:
        assert "finishing " in said and "press Ctrl-C again" in said
        written = len(list(Path("out").rglob("*.txt")))
        assert len(marked) == said.count("finished ") - said.count("finished files") == written
