"""The library and the command with speakers, from samples to files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from slimwhisper import cli
from slimwhisper.api import SlimWhisper
from slimwhisper.errors import OptionError
from tests.support.spoken import spoken_words


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six spoken digits, in a file, beside one that says who speaks: the first three are Ann's."""
    folder = tmp_path_factory.mktemp("talk")
    pieces: list[Any] = [np.zeros(4_000, np.float32)]
    for _, word in spoken_words()[:6]:
        pieces += [word, np.zeros(2_400, np.float32)]
    soundfile.write(folder / "talk.wav", np.concatenate(pieces), 16_000)
    cut, end = (sum(map(len, part)) / 16_000 for part in (pieces[:7], pieces))
    lines = (("Ann", 0, cut - 0.07), ("Bob", cut - 0.07, end))
    (folder / "talk.rttm").write_text(
        "".join(f"SPEAKER talk 1 {a} {b - a} <NA> <NA> {name}\n" for name, a, b in lines)
    )
    return folder / "talk.wav"


def every(result: dict[str, Any], name: str) -> list[Any]:
    """The words or tokens of all segments."""
    return [each for segment in result["segments"] for each in segment[name]]


def test_segments_are_cut_by_speaker(digits: SlimWhisper, talk: Path) -> None:
    plain = digits.transcribe(talk, temperature=0, word_timestamps=True)
    result = digits.transcribe(talk, temperature=0, diarize=str(talk.with_suffix(".rttm")))
    assert result["text"] == plain["text"]
    words = every(result, "words")
    assert [{k: v for k, v in w.items() if k != "speaker"} for w in words] == every(plain, "words")
    assert [w["speaker"] for w in words] == ["Ann"] * 3 + ["Bob"] * 3
    assert every(result, "tokens") == every(plain, "tokens")
    tokenizer = digits.network.vocabulary.tokenizer("en", "transcribe")
    for segment in result["segments"]:
        text = [t for t in segment["tokens"] if digits.network.vocabulary.is_text(t)]
        assert tokenizer.decode(text) == segment["text"]
        assert {w["speaker"] for w in segment["words"]} == {segment["speaker"]}


@pytest.mark.usefixtures("made_up_voices")
def test_the_command_with_embeddings(
    talk: Path, digits_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    flags = ["--model", str(digits_path), "--verbose", "False", "--beam_size", "None"]
    speakers = ["--diarize", "embedding", "--known_speaker", f"Ann={talk}"]
    assert cli.main(["transcribe", str(talk), "-o", str(out), *flags, *speakers]) == 0
    suffixes = {path.suffix for path in out.iterdir()}
    assert suffixes == {".json", ".rttm", ".srt", ".tsv", ".txt", ".vtt"}
    assert (out / "talk.txt").read_text().startswith("Ann: ")
    assert (out / "talk.rttm").read_text().startswith("SPEAKER talk 1 ")
    assert "<v Ann>" in (out / "talk.vtt").read_text()


def test_before_anything_is_read(digits: SlimWhisper, tmp_path: Path) -> None:
    bad = tmp_path / "bad.rttm"
    bad.write_text("nothing\n")
    with pytest.raises(OptionError, match=r"bad\.rttm, line 1"):
        digits.transcribe_many(["missing.wav"], diarize=str(bad))
