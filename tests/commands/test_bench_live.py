"""`bench/live.py`: its scores, by hand; a small run of the whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

BENCH = ROOT / "bench"
FSDD = ROOT.parent / "shared" / "audio" / "fsdd"
ITEM = "conversation.item.input_audio_transcription"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts' folder on the path, as when one of them runs."""
    pytest.importorskip("websockets", reason="needs the extra app")
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    import live_client
    import live_score

    yield live_client, live_score
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def spoken(bench: Any, text: str) -> list[Any]:
    """Each word takes a second."""
    return [bench[1].Spoken(word, float(i), i + 0.8, "anna") for i, word in enumerate(text.split())]


def told(bench: Any, *events: tuple[float, str, str]) -> list[Any]:
    """What a client shows after events of one item: time, kind, text."""
    played = bench[0].Played()
    bench[0].hear({"type": "input_audio_buffer.speech_started", "item_id": "a"}, played, 0.0)
    for at, kind, text in events:
        event = {"type": f"{ITEM}.{kind}", "item_id": "a", "delta": text, "text": text}
        bench[0].hear(event, played, at)
    bench[0].hear({"type": f"{ITEM}.completed", "item_id": "a"}, played, 99.0)
    assert not played.open and played.error is None
    return list(played.utterances.values())


def test_delays_are_from_a_words_end_to_its_commitment(bench: Any) -> None:
    shown = told(
        bench,
        (1.0, "tentative", "one"),
        (2.0, "delta", "One"),
        (2.0, "tentative", " two"),
        (4.5, "delta", " two, thr"),
        (5.0, "delta", "ee"),
    )
    score = bench[1].score(spoken(bench, "one two three"), "one two three", shown)
    assert score.delays == pytest.approx([2.0 - 0.8, 4.5 - 1.8, 5.0 - 2.8])
    assert (score.truth_errors, score.offline_errors, score.erased) == (0, 0, 0)


def test_wrong_words_have_no_delay(bench: Any) -> None:
    """One is replaced, one missing, one too many; the others keep their places."""
    shown = told(bench, (9.0, "delta", "one nine three five six seven ten"))
    truth = spoken(bench, "one two three four five six seven")
    score = bench[1].score(truth, "one nine three five six", shown)
    assert (score.truth_words, score.truth_errors) == (7, 3)
    assert (score.offline_words, score.offline_errors, score.live_words) == (5, 2, 7)
    assert score.delays == pytest.approx([9 - i - 0.8 for i in (0, 2, 4, 5, 6)])


def test_words_that_are_taken_back(bench: Any) -> None:
    """ "four too" -> "for two free": both; -> "for two three": one. A longer tail takes nothing
    back.
    """
    shown = told(
        bench,
        (1.0, "tentative", "four too"),
        (2.0, "tentative", "for two free"),
        (3.0, "delta", "for"),
        (3.0, "tentative", " two three"),
        (4.0, "tentative", " two three six"),
        (5.0, "delta", " two three six"),
        (5.0, "tentative", ""),
    )
    score = bench[1].score(spoken(bench, "for two three six"), "", shown)
    assert score.erased == 3
    total = score + score
    assert total.summary()["erasure"] == pytest.approx(3 / 4)
    assert total.summary()["word_errors"] == 0


def test_nothing_was_understood(bench: Any) -> None:
    score = bench[1].score(spoken(bench, "one two"), "one", [])
    assert (score.truth_errors, score.offline_errors) == (2, 1)
    assert score.summary()["p95"] is None


def test_percentiles(bench: Any) -> None:
    values = np.random.default_rng(0).uniform(size=37)
    for p in (50, 95, 99):
        assert bench[1].percentile(list(values), p) == pytest.approx(np.percentile(values, p))
    assert bench[1].percentile([2.0], 95) == 2.0


def test_a_failure_is_told(bench: Any) -> None:
    played = bench[0].Played()
    bench[0].hear({"type": "error", "error": {"message": "no"}}, played, 0.0)
    assert "no" in played.error


@pytest.mark.slow
@pytest.mark.skipif(not FSDD.is_dir(), reason="needs the recordings of shared/")
def test_a_run(tmp_path: Path) -> None:
    """One stream of a few seconds; a second run measures nothing again."""
    pytest.importorskip("websockets", reason="needs the extra app")
    results = tmp_path / "rows.jsonl"
    command = [sys.executable, str(BENCH / "live.py"), str(FSDD), "--streams", "1"]
    command += ["--seconds", "5", "--window", "10", "--results", str(results)]
    rows = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    row = rows[0]
    assert rows[1] == row and len(results.read_text().splitlines()) == 1
    assert row["words"] >= 6 and row["word_errors"] < 50
    assert 0 < row["p50"] <= row["p95"] < 10
    assert row["updates"] > 0 and row["server_cpu"] > row["client_cpu"] > 0
