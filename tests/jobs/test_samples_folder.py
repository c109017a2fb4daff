"""`samples/` by the bundled model, through the command line: words, times, and the broken file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jiwer
import pytest

from recipes.digits.evaluate import Heard, timing
from recipes.digits.sequences import Said
from tests.support.spoken import EXPECTED, LONG, SAMPLES, WORDS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """README's first command."""
    out = tmp_path_factory.mktemp("texts")
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(SAMPLES), "--model", "digits"]
    return out, subprocess.run([*command, "-o", str(out)], capture_output=True, text=True)


def transcript(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / Path(name).with_suffix(".json").name).read_text())


def test_every_format_is_there() -> None:
    suffixes = {Path(name).suffix for name in EXPECTED}
    assert {".wav", ".flac", ".mp3", ".m4a", ".ogg"} <= suffixes
    assert sum(file.stat().st_size for file in SAMPLES.iterdir() if file.is_file()) < 3e6
    assert len(EXPECTED) >= 7
    assert EXPECTED[LONG]["segments"][-1]["end"] > 170


@pytest.mark.slow
def test_words(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    texts = [str(transcript(run[0], name)["text"]).strip() for name in EXPECTED]
    assert jiwer.wer([truth["text"] for truth in EXPECTED.values()], texts) <= 0.01


def test_times(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """19 of 20 segments begin and end within 0.2 s of the words in them."""
    right = total = 0
    for name, truth in EXPECTED.items():
        words = [Said(WORDS.index(w["text"]), w["start"], w["end"]) for w in true_words(truth)]
        found = [
            Heard(s["start"], s["end"], s["text"])
            for s in transcript(run[0], name)["segments"]
            if s["text"].strip()
        ]
        assert [s.start for s in found] == sorted(s.start for s in found)
        timed = timing(words, found)
        right, total = right + timed.right, total + timed.total
    assert total > 70
    assert right >= 0.95 * total


def true_words(truth: dict[str, Any]) -> list[dict[str, Any]]:
    return [word for segment in truth["segments"] for word in segment["words"]]


def test_the_broken_file_costs_one_line(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, done = run
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "broken" in line]
    assert len(lines) == 1
    assert "not audio or video" in lines[0]
    assert f"{len(EXPECTED)} of {len(EXPECTED) + 1} files transcribed, 1 failed" in done.stderr
    assert not list(out.glob("broken*"))


def test_it_says_what_it_is(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    lines = [line for line in run[1].stderr.splitlines() if "zero to nine" in line]
    assert len(lines) == 1
    assert "--model turbo" in lines[0]
