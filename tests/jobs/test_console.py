"""What a job prints: JSON lines for programs, text and a bar for people."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.folder_job import GOOD, written

pytestmark = pytest.mark.usefixtures("fake_model", "tree")


def test_json_lines(run: Any) -> None:
    done = run("in", "--log_json", "True")
    assert (done.status, done.err) == (1, "")
    events = [json.loads(line) for line in done.out.splitlines()]
    kinds = [e["event"] for e in events]
    assert (kinds[0], kinds[-1]) == ("start", "summary")
    assert {"segment", "file", "progress"} < set(kinds)
    assert events[0]["model"] == "fake" and events[0]["cache"] == "e+x"
    files = {e["path"]: e for e in events if e["event"] == "file"}
    good, bad = files["in/a.wav"], files["in/c/x.wav"]
    assert good.pop("elapsed") >= 0 and list(good.values()) == (
        ["file", "in/a.wav", "done", 3.0, None, "en", ["out/a.txt"]]
    )
    assert bad["status"] == "failed" and bad["error"].startswith("in/c/x.wav: damaged")
    summary = events[-1]
    assert (summary["done"], summary["failed"], summary["status"]) == (3, 1, 1)
    assert summary["audio_seconds"] == 11.0
    quiet = run("in", "gone.wav", "--log_json", "True", "--verbose", "False")
    error, summary = (json.loads(line) for line in quiet.out.splitlines())
    assert error["event"] == "error" and "gone.wav: no such file" in error["message"]
    assert (summary["skipped"], summary["failed_earlier"]) == (3, 1)


def test_json_lines_tell_what_is_wrong(run: Any) -> None:
    Path("out").write_text("a file")
    done = run("in", "--log_json", "True")
    assert done.status == 1 and "cannot write there" in done.err
    assert json.loads(done.out)["event"] == "error"
    warned = run("in", "-o", "o", "--log_json", "True", "--word_timestamps", "True",
                 "--max_line_count", "2")  # fmt: skip
    first = json.loads(warned.out.splitlines()[0])
    assert first["event"] == "warning" and "no effect without" in first["message"]


def test_a_bar_on_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.jobs.survey.header_seconds", lambda path: 4.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("slimwhisper.jobs.console.TerminalConsole.interval", 0.0)
    done = run("in", "--verbose", "False")
    assert done.status == 1
    assert "x real time" in done.err and "3 done, 1 failed" in done.err
    bar = [line for line in done.err.split("\r") if "| 0:0" in line]
    assert bar and any("a.mp3, a.wav" in line for line in bar)


def test_a_survey_that_fails_costs_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> float:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("slimwhisper.jobs.survey.header_seconds", broken)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    done = run("in")
    assert done.status == 1 and "RuntimeError" not in done.err
    assert written() == GOOD
