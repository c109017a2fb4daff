"""Signals, the survey of a job's length, and the words of the progress line."""

import os
import threading
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import soundfile

from slimwhisper.files import Fingerprint, InputFile
from slimwhisper.jobs.job import survey
from slimwhisper.jobs.progress import (
    FileProgress,
    JobTotals,
    model_terms,
    summary_facts,
    summary_lines,
)


def test_the_line() -> None:
    totals = JobTotals()
    assert totals.line() == "0:00 of 0:00+ | 0.0 x real time, ? left | 0 done"
    totals.began = time.perf_counter() - 10
    totals.done, totals.failed, totals.audio = 3, 1, 630.0
    totals.surveyed = 3600.0
    for name in ("a very long name of a recording, part 07.mp3", "b\n.mp3", "c.mp3", "d.mp3"):
        recording = InputFile(Path("in", name), "", Fingerprint("", 1, 1))
        totals.current[recording.path] = FileProgress(recording, done=30.0)
    expected = "12:30 of 1:00:00+ | 75.0 x real time, 0:38+ left | 3 done, 1 failed | "
    assert totals.line() == f"{expected}a very long… part 07.mp3, b\\n.mp3, +2"
    totals.complete = True
    assert "of 1:00:00 | 75.0 x real time, 0:38 left" in totals.line()
    totals.complete, totals.surveyed, totals.loaded = False, 0.0, totals.audio_so_far
    assert totals.remaining is None and "x real time, ? left" in totals.line()
    totals.loaded = 1000.0  # no survey was made: what is loaded counts
    assert "12:30 of 16:40" in totals.line()


MODEL = {"model": "tiny", "device": "cpu", "dtype": "float32", "cache": "e+x"}
FACTS = MODEL | {"batch_size": 16, "fallbacks": [], "settings": [], "bytes_per_window": 1_000_000}


def test_lines_about_the_model_and_segments_to_check() -> None:
    facts = summary_facts(JobTotals(done=1, segments=412, flagged=3), 0, None, {})
    smaller = summary_lines(facts, FACTS | {"baseline_bytes_per_window": 8_000_000})
    assert smaller[1:] == [
        "3 of 412 segments to check",
        "tiny on cpu, float32, batch 16; cache e+x: 1.0 MB per window, "
        "8.0 times smaller than the baseline's 8.0 MB",
    ]
    one = summary_facts(JobTotals(done=1, segments=1, flagged=1), 0, None, {})
    same = summary_lines(one, FACTS | {"baseline_bytes_per_window": 1_000_000})
    assert same[1] == "1 of 1 segment to check" and same[2].endswith("1.0 MB per window")
    others = {".srt": 7, "hidden": 1} | {f".{n}": n for n in range(1, 10)}
    dropped = summary_facts(JobTotals(done=1, segments=1, dropped=2), 0, None, others)
    assert summary_lines(dropped, None)[1:] == [
        "2 segments dropped",
        "left out: 9 .9, 8 .8, 7 .7, 6 .6, 5 .5, 4 .4, 3 .3, 2 .2, 2 others",
    ]
    waited = FACTS | {"peak_bytes": 5_000_000, "preemptions": 3}
    notes = model_terms(waited, "tiny")["notes"]
    assert "5.0 MB" in notes and "3 times" in notes and "--cache_memory" in notes


def test_survey(tmp_path: Path) -> None:
    """The lengths that headers say; nothing of what cannot be read."""
    for suffix in ("wav", "flac", "mp3"):
        soundfile.write(tmp_path / f"a.{suffix}", np.zeros(24_000, np.float32), 16_000)
    (tmp_path / "text.wav").write_text("words")
    (tmp_path / "empty.wav").touch()
    os.mkfifo(tmp_path / "pipe.wav")  # it would wait for somebody who writes
    names = ("a.wav", "a.flac", "a.mp3", "text.wav", "empty.wav", "gone.wav", "pipe.wav", ".")
    totals, end = JobTotals(), threading.Event()
    survey(map(tmp_path.joinpath, names), totals, end)
    assert totals.complete and totals.surveyed == pytest.approx(4.5, abs=0.1)
    end.set()
    stopped = JobTotals()
    survey(repeat(tmp_path / "a.wav"), stopped, end)
    assert not stopped.complete
