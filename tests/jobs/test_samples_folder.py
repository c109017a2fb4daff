"""`samples/` by the bundled model, through the command line: words and times."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jiwer
import pytest

from recipes.digits.evaluate import TimedText, timing
from recipes.digits.sequences import SpokenDigit
from tests.support.spoken import EXPECTED, LONG, SAMPLES, WORDS


@pytest.mark.slow
def test_readme_s_first_command(tmp_path: Path) -> None:
    """Every word, and 19 of 20 segments within 0.2 s of the words in them."""
    assert {".wav", ".flac", ".mp3", ".m4a", ".ogg"} <= {Path(name).suffix for name in EXPECTED}
    assert EXPECTED[LONG]["segments"][-1]["end"] > 170
    command = [sys.executable, "-m", "slimwhisper", "transcribe", str(SAMPLES), "--model", "digits"]
    done = subprocess.run([*command, "-o", str(tmp_path)], capture_output=True, text=True)
    found: dict[str, dict[str, Any]] = {
        name: json.loads((tmp_path / Path(name).with_suffix(".json")).read_text())
        for name in EXPECTED
    }
    texts = [found[name]["text"].strip() for name in EXPECTED]
    assert jiwer.wer([truth["text"] for truth in EXPECTED.values()], texts) <= 0.01
    right = total = 0
    for name, truth in EXPECTED.items():
        spoken = [word for segment in truth["segments"] for word in segment["words"]]
        words = [SpokenDigit(WORDS.index(w["text"]), w["start"], w["end"]) for w in spoken]
        segments = [s for s in found[name]["segments"] if s["text"].strip()]
        timed_texts = [TimedText(s["start"], s["end"], s["text"]) for s in segments]
        assert [s.start for s in timed_texts] == sorted(s.start for s in timed_texts)
        timed = timing(words, timed_texts)
        right, total = right + timed.right, total + timed.total
    assert total > 70 and right >= 0.95 * total

    assert done.returncode == 0
    assert f"{len(EXPECTED)} of {len(EXPECTED)} files transcribed, 0 failed" in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "zero to nine" in line)
    assert "--model turbo" in line
