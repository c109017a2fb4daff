"""A job that is killed at random moments and resumed ends as if nothing had happened; and one that
is interrupted finishes what it has begun.
"""

import os
import random
import re
import signal
from pathlib import Path

import pytest

from slimwhisper.outputs import formats_of
from tests.support.kills import Kills, forking, journal_lines
from tests.support.waiting import eventually


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


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        pytest.param(["SIGINT"], 130, marks=pytest.mark.slow),
        (["SIGINT", "SIGINT"], 130),
        (["SIGTERM"], 143),
    ],
)
def test_signals(tree: Path, tmp_path: Path, signals: list[str], expected: int) -> None:
    """The first Ctrl-C finishes what is in progress; a second one and SIGTERM stop immediately."""
    for number in range(400):
        (tree / f"{number}.wav").write_text("good")
    log, out = tmp_path / "log", tmp_path / "out"
    begun = lambda: bool(journal_lines(out)), lambda: "finishing" in log.read_text()
    command = "transcribe in -o out -f txt --verbose False".split()
    with forking(*command, delay=0.05) as start:
        child = start(log)
        for name, holds in zip(signals, begun, strict=False):
            assert eventually(holds)
            os.kill(child.pid, signal.Signals[name])
        assert child.wait() == expected
    said, marked = log.read_text(), journal_lines(out)
    assert "stopped early; finished files are saved; run the same command again to resume" in said
    assert "Traceback" not in said and not list(out.rglob(".slimwhisper-*"))
    assert 1 <= len(marked) < 400 and {line["status"] for line in marked} == {"done"}
    assert said.count("press Ctrl-C again") == (signals[0] == "SIGINT")
    if signals == ["SIGINT"]:
        (files,) = re.findall(r"finishing (\d+) files", said)
        assert int(files) <= len(marked) == len(list(out.rglob("*.txt")))
