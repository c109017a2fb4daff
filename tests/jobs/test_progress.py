"""The survey of a job's length, and the summary."""

import os
import threading
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from slimwhisper.jobs.job import survey
from slimwhisper.jobs.progress import JobTotals, model_terms, summary_facts, summary_lines

FACTS: dict[str, Any] = {"model": "tiny", "device": "cpu", "dtype": "float32", "cache": "e+x"}
FACTS |= {"batch_size": 16, "fallbacks": [], "settings": []}
FACTS |= {"bytes_per_window": 1_000_000, "baseline_bytes_per_window": 8_000_000}


def test_summary() -> None:
    """All lines that may be in it."""
    left_out = {".srt": 7, "hidden": 1} | {f".{n}": n for n in range(1, 10)}
    totals = JobTotals(done=1, skipped=2, failed_earlier=1, segments=412, flagged=3, dropped=2)
    facts = summary_facts(totals, 130, "out/j.jsonl", left_out)
    facts |= {"report": "r.html", "faster": "x"}
    model = FACTS | {"peak_bytes": 5_000_000, "preemptions": 3, "fallbacks": ["fell back"]}
    parts = (
        "1 of 1 file transcribed, 0 failed, 2 already done, 1 failed in an earlier run; 0.0 s of",
        *("3 of 412 segments", "2 segments dropped", ": 9 .9, 8 .8, 7 .7, 6 .6, 5 .5, 4 .4, 3 .3"),
        *("run the same command again", "--retry_failed", "out/j.jsonl", "r.html"),
        *("float32, batch 16; cache (e+x): 1.0 MB per window, 8.0 times", "fell back", "auto (x"),
    )
    for line, part in zip(summary_lines(facts, model), parts, strict=True):
        assert part in line
    notes = model_terms(model, "tiny")["notes"]
    assert all(each in notes for each in ("up to 5.0 MB", "3 times"))


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
