"""Signals, the survey of a job's length, and the words of the progress line."""

import signal
import threading
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import soundfile

from slimwhisper.jobs.interrupts import Interrupts, StopNow
from slimwhisper.jobs.progress import Current, Tally, model_terms, summary_facts, summary_lines
from slimwhisper.jobs.survey import header_seconds, survey
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.stamps import Stamp
from slimwhisper.text import shorten


def test_shorten() -> None:
    assert shorten("talk.mp3") == "talk.mp3"
    short = shorten("a very long name of a recording, part 07.mp3")
    assert len(short) == 24 and short.startswith("a very") and short.endswith("part 07.mp3")


def test_the_line() -> None:
    tally = Tally()
    assert tally.line() == "0:00 of 0:00+ | 0.0 x real time, ? left | 0 done"
    tally.began = time.perf_counter() - 10
    tally.done, tally.failed, tally.audio, tally.passed = 3, 1, 600.0, 630.0
    tally.surveyed = 3600.0
    for path in map(Path, ("in/a.mp3", "in/b\n.mp3", "in/c.mp3", "in/d.mp3")):
        tally.current[path] = Current(InputFile(path, "", Stamp("", 1, 1)), done=30.0)
    assert tally.line() == (
        "12:30 of 1:00:00+ | 72.0 x real time, 0:39+ left | 3 done, 1 failed | a.mp3, b\\n.mp3, +2"
    )
    tally.complete = True
    assert "of 1:00:00 | 72.0 x real time, 0:39 left" in tally.line()
    tally.complete, tally.surveyed, tally.loaded = False, 0.0, tally.position
    assert tally.left is None and "x real time, ? left" in tally.line()
    tally.loaded = 1000.0  # no survey was made: what is loaded counts
    assert "12:30 of 16:40" in tally.line()


MODEL = {"model": "tiny", "device": "cpu", "dtype": "float32", "cache": "e+x"}
FACTS = MODEL | {"batch_size": 16, "fallbacks": [], "settings": [], "bytes_per_window": 1_000_000}


@pytest.mark.parametrize(
    ("tally", "status", "line"),
    [
        (Tally(skipped=1), 0, "Nothing to do: 1 file already done."),
        (Tally(failed_earlier=2), 1, "Nothing to do: 2 files failed in an earlier run."),
        (Tally(), 130, "No files transcribed."),
        (Tally(failed=1), 1, "0 of 1 file transcribed, 1 failed"),
        (
            Tally(done=2, skipped=1, failed_earlier=3, audio=1.5),
            1,
            "2 of 2 files transcribed, 0 failed, 1 already done, 3 failed in an earlier run; "
            "1.5 s of audio in 0.0 s (0.0 x real time)",
        ),
    ],
)
def test_the_first_line_of_the_summary(tally: Tally, status: int, line: str) -> None:
    assert summary_lines(summary_facts(tally, status, None), None)[0] == line


def test_lines_about_the_model_and_segments_to_check() -> None:
    facts = summary_facts(Tally(done=1, segments=412, flagged=3), 0, None)
    smaller = summary_lines(facts, FACTS | {"baseline_bytes_per_window": 8_000_000})
    assert smaller[1:] == [
        "3 of 412 segments to check",
        "tiny on cpu, float32, batch 16; cache e+x: 1.0 MB per window, "
        "8.0 times smaller than the baseline's 8.0 MB",
    ]
    one = summary_facts(Tally(done=1, segments=1, flagged=1), 0, None)
    same = summary_lines(one, FACTS | {"baseline_bytes_per_window": 1_000_000})
    assert same[1] == "1 of 1 segment to check" and same[2].endswith("1.0 MB per window")
    waited = FACTS | {"peak_bytes": 5_000_000, "preemptions": 3}
    notes = model_terms(waited, "tiny")["notes"]
    assert "5.0 MB at most" in notes and "3 times" in notes and "--cache_memory" in notes


def test_header_seconds(tmp_path: Path) -> None:
    for suffix in ("wav", "flac", "mp3"):
        soundfile.write(tmp_path / f"a.{suffix}", np.zeros(24_000, np.float32), 16_000)
        assert header_seconds(tmp_path / f"a.{suffix}") == pytest.approx(1.5, abs=0.1)
    (tmp_path / "text.wav").write_text("words")
    (tmp_path / "empty.wav").touch()
    for name in ("text.wav", "empty.wav", "gone.wav", "."):
        assert header_seconds(tmp_path / name) == 0


def test_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.jobs.survey.header_seconds", lambda path: float(path.stem))
    tally, end = Tally(), threading.Event()
    survey([Path(f"{n}.wav") for n in range(5)], tally, end)
    assert tally.complete and tally.surveyed == 10
    stopped = Tally()
    end.set()
    survey(repeat(Path("1.wav")), stopped, end)
    assert not stopped.complete


def test_first_and_second_interrupt(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts(lambda: 3)
    with interrupts.caught():
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested and interrupts.status == 130
        assert "finishing 3 files in progress; press Ctrl-C again" in capfd.readouterr().err
        with pytest.raises(StopNow) as stop:
            signal.raise_signal(signal.SIGINT)
        assert stop.value.status == 130


@pytest.mark.parametrize(("number", "files"), [(signal.SIGINT, 0), (signal.SIGTERM, 3)])
def test_what_stops_at_once(number: signal.Signals, files: int) -> None:
    """A signal with nothing in progress, and SIGTERM."""
    interrupts = Interrupts(lambda: files)
    with interrupts.caught(), pytest.raises(StopNow) as stop:
        signal.raise_signal(number)
    assert stop.value.status == interrupts.status == 128 + number


def test_other_threads_leave_signals_alone() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with Interrupts(lambda: 1).caught():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
