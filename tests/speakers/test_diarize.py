"""The library and the command with speakers, from samples to files."""

from pathlib import Path
from typing import Any

import pytest
import soundfile

import slimwhisper
from slimwhisper import cli
from slimwhisper.api import SlimWhisper
from slimwhisper.errors import OptionError
from tests.support.spoken import WORDS, spoken_words
from tests.support.voices import made_up_voices

__all__ = ["made_up_voices"]


@pytest.fixture(scope="module")
def model(digits_path: Path) -> SlimWhisper:
    return slimwhisper.load_model(digits_path, "cpu")


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six spoken digits, in a file, beside one that says who speaks: the first three are Ann's."""
    import numpy as np

    folder = tmp_path_factory.mktemp("talk")
    pieces: list[Any] = [np.zeros(4_000, np.float32)]
    borders = []
    for digit, word in spoken_words()[:6]:
        assert WORDS[digit]
        borders.append(sum(map(len, pieces)) / 16_000)
        pieces += [word, np.zeros(2_400, np.float32)]
    audio = np.concatenate(pieces)
    soundfile.write(folder / "talk.wav", audio, 16_000)
    cut, end = borders[3] - 0.07, len(audio) / 16_000
    (folder / "talk.rttm").write_text(
        f"SPEAKER talk 1 0 {cut:.3f} <NA> <NA> Ann <NA> <NA>\n"
        f"SPEAKER talk 1 {cut:.3f} {end - cut:.3f} <NA> <NA> Bob <NA> <NA>\n"
    )
    return folder / "talk.wav"


def test_segments_are_cut_by_speaker(model: SlimWhisper, talk: Path) -> None:
    plain = model.transcribe(talk, temperature=0, word_timestamps=True)
    found = model.transcribe(talk, temperature=0, diarize=str(talk.with_suffix(".rttm")))
    assert found["text"] == plain["text"]
    words = [w for s in found["segments"] for w in s["words"]]
    assert [{k: v for k, v in w.items() if k != "speaker"} for w in words] == [
        w for s in plain["segments"] for w in s["words"]
    ]
    assert [w["speaker"] for w in words] == ["Ann"] * 3 + ["Bob"] * 3
    assert [t for s in found["segments"] for t in s["tokens"]] == [
        t for s in plain["segments"] for t in s["tokens"]
    ]
    tokenizer = model.network.vocabulary.tokenizer("en", "transcribe")
    for segment in found["segments"]:
        text = [t for t in segment["tokens"] if model.network.vocabulary.is_text(t)]
        assert tokenizer.decode(text) == segment["text"]
        assert {w["speaker"] for w in segment["words"]} == {segment["speaker"]}


@pytest.mark.usefixtures("made_up_voices")
def test_the_command_with_embeddings(
    talk: Path, digits_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    flags = ["--model", str(digits_path), "--verbose", "False", "--beam_size", "None"]
    speakers = ["--diarize", "embedding", "--known_speaker", f"Ann={talk}"]
    done = cli.main(["transcribe", str(talk), "-o", str(out), *flags, *speakers])
    assert done == 0
    assert sorted(p.suffix for p in out.iterdir()) == sorted(
        [".json", ".rttm", ".srt", ".tsv", ".txt", ".vtt"]
    )
    assert (out / "talk.txt").read_text().startswith("Ann: ")
    assert (out / "talk.rttm").read_text().startswith("SPEAKER talk 1 ")
    assert "<v Ann>" in (out / "talk.vtt").read_text()


def test_a_job_with_a_damaged_file_of_turns(
    talk: Path, digits_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.rttm"
    bad.write_text("SPEAKER talk 1 zero 1 <NA> <NA> ann\n")
    flags = ["--model", str(digits_path), "--diarize", str(bad), "-o", str(tmp_path / "out")]
    assert cli.main(["transcribe", str(talk), *flags]) != 0
    assert "bad.rttm, line 1: 'SPEAKER talk 1 zero" in capsys.readouterr().err


def test_before_anything_is_read(model: SlimWhisper, tmp_path: Path) -> None:
    bad = tmp_path / "bad.rttm"
    bad.write_text("nothing\n")
    with pytest.raises(OptionError, match=r"bad\.rttm, line 1"):
        model.transcribe_many(["missing.wav"], diarize=str(bad))
