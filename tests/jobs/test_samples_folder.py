"""`samples/` by the bundled model, through the command line: words and times."""

import json
from pathlib import Path
from typing import Any

import jiwer
import pytest

from tests.support.command import python
from tests.support.spoken import EXPECTED, LONG, SAMPLES


@pytest.mark.slow
def test_readme_s_first_command(tmp_path: Path) -> None:
    """Every word, and 19 of 20 segments within 0.2 s of the words in them."""
    assert {".wav", ".flac", ".mp3", ".m4a", ".ogg"} <= {Path(name).suffix for name in EXPECTED}
    assert EXPECTED[LONG]["segments"][-1]["end"] > 170
    flags = ("--model", "digits", "-o", str(tmp_path))
    done = python("-m", "slimwhisper", "transcribe", str(SAMPLES), *flags)
    found: dict[str, dict[str, Any]] = {
        name: json.loads((tmp_path / Path(name).with_suffix(".json")).read_text())
        for name in EXPECTED
    }
    texts = [found[name]["text"].strip() for name in EXPECTED]
    assert jiwer.wer([truth["text"] for truth in EXPECTED.values()], texts) <= 0.01
    right = []
    for name, truth in EXPECTED.items():
        spoken = [word for segment in truth["segments"] for word in segment["words"]]
        spans = [(s["start"], s["end"]) for s in found[name]["segments"] if s["text"].strip()]
        assert spans == sorted(spans)
        for start, end in spans:
            inside = [w for w in spoken if start < (w["start"] + w["end"]) / 2 < end]
            near = inside and max(abs(inside[0]["start"] - start), abs(inside[-1]["end"] - end))
            right.append(bool(inside) and near <= 0.2)
    assert len(right) > 70 and sum(right) >= 0.95 * len(right)

    assert done.returncode == 0
    assert f"{len(EXPECTED)} of {len(EXPECTED)} files transcribed, 0 failed" in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "zero to nine" in line)
    assert "--model turbo" in line
