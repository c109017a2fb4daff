"""Speakers in every format; transcripts without them are as before."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from slimwhisper.errors import AudioError, OptionError
from slimwhisper.outputs import DIARIZE, FORMATS, RECORDING, formats_of
from slimwhisper.speakers.diarize import read_rttm, turns_of_recording
from slimwhisper.speakers.turns import Turn
from slimwhisper.types import Segment, Transcript, Word


def segment(i: int, start: float, end: float, text: str, speaker: str | None) -> Segment:
    parts = text.split()
    step = (end - start) / max(len(parts), 1)
    words = [
        Word(f" {w}", start + k * step, start + (k + 1) * step, 0.9, speaker)
        for k, w in enumerate(parts)
    ]
    return Segment(i, 0, start, end, text, [1], 0.0, -0.5, 1.0, 0.1, words, speaker)


TALK = Transcript(
    " one two three four five",
    [
        segment(0, 0.0, 1.0, " one two", "Ann <B> & C"),
        segment(1, 1.0, 1.5, " three", "Ann <B> & C"),
        segment(2, 1.5, 1.5, "", None),
        segment(3, 2.0, 3.0, " four", "SPEAKER_00"),
        segment(4, 5.0, 6.0, " five", None),
        segment(5, 7.0, 8.0, " six", "SPEAKER_00"),
    ],
    "en",
)


def written(format: str, transcript: Transcript = TALK, **layout: object) -> str:
    return FORMATS[format].render(transcript, layout).decode()


SAID = ["Ann <B> & C: one two", "three", "SPEAKER_00: four", "five", "SPEAKER_00: six"]
VOICES = "<v Ann &lt;B&gt; &amp; C>one two", "<v Ann &lt;B&gt; &amp; C>three", "<v SPEAKER_00>four"


def texts(cues: str) -> list[str]:
    return re.findall(r"-->.*\n(.*(?:\n.+)*)", cues)


def test_names_stand_where_the_speaker_changes() -> None:
    assert written("txt").splitlines() == SAID == texts(written("srt"))
    assert texts(written("vtt")) == [*VOICES, "five", "<v SPEAKER_00>six"]
    assert written("tsv").splitlines()[:2] == [
        "start\tend\ttext\tspeaker",
        "0\t1000\tone two\tAnn <B> & C",
    ]
    assert all(line.count("\t") == 3 for line in written("tsv").splitlines())
    wide = {"max_line_width": 80, "max_line_count": 2}
    assert texts(written("srt", **wide)) == [f"{SAID[0]} three", *SAID[2:]], "no cue has two"
    assert "Ann <B> & C: one <u>two</u>" in written("srt", highlight_words=True)
    result = json.loads(written("json"))["segments"]
    assert [s.get("speaker") for s in result] == [s.speaker for s in TALK.segments]
    assert result[0]["words"][0]["speaker"] == "Ann <B> & C"


def test_rttm_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.rttm"
    path.write_text(written("rttm", **{RECORDING: "my talk"}))
    (turns,) = read_rttm(path).values()
    assert path.read_text().startswith("SPEAKER my_talk 1 0.000 1.500 <NA> <NA> Ann_<B>_&_C <NA>")
    names = "Ann_<B>_&_C", "SPEAKER_00", "SPEAKER_00"
    spans = (0.0, 1.5), (2.0, 3.0), (7.0, 8.0)
    assert turns == [Turn(*span, name) for span, name in zip(spans, names, strict=True)]
    assert written("rttm").split()[1] == "recording"
    read = replace(TALK, segments=[replace(s, end=s.end + 0.5) for s in TALK.segments])
    assert written("rttm", read) == written("rttm"), "without the time to read a sentence"
    nobody = Transcript(" one two", [segment(0, 0.0, 1.0, " one two", None)], "en")
    assert written("rttm", nobody) == ""


def test_all_has_rttm_where_speakers_are_asked_for() -> None:
    assert formats_of("all", {}) == ("txt", "vtt", "srt", "tsv", "json")  # whisper's
    assert formats_of("all", {DIARIZE: "embedding"}) == (*formats_of("all"), "rttm")


# RTTM files of other programs, and damaged ones

GOOD = "SPEAKER talk 1 0.500 1.250 <NA> <NA> ann <NA> <NA>\n"


def write(folder: Path, text: str | bytes, name: str = "talk.rttm") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_turns_by_recording(tmp_path: Path) -> None:
    text = (
        ";; a comment\n\nSPKR-INFO talk 1 <NA> <NA> <NA> unknown ann <NA>\n"
        "SPEAKER talk 1 3 1e0 <NA> <NA> bob <NA>\n"
        f"{GOOD}SPEAKER other 1 0 0 <NA> <NA> c <NA> <NA>\n"
        "SPEAKER\tother 1\t2.5 0.5 <NA> <NA> d\n"
    )
    result = read_rttm(write(tmp_path, b"\xef\xbb\xbf" + text.encode().replace(b"\n", b"\r\n")))
    assert result == {
        "talk": [Turn(0.5, 1.75, "ann"), Turn(3, 4, "bob")],
        "other": [Turn(2.5, 3.0, "d")],
    }


@pytest.mark.parametrize(
    "line",
    [
        "SPEAKER talk 1 x 1 <NA> <NA> ann <NA> <NA>",
        "SPEAKER talk 1 0 -1 <NA> <NA> ann <NA> <NA>",
        "SPEAKER talk 1 nan 1 <NA> <NA> ann <NA> <NA>",
        "SPEAKER talk 1 0 1 <NA> <NA>",
        "start,end,speaker",
        "\x1b[31m0.5 1.0 ann",
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, f"{GOOD}{line}\n")
    with pytest.raises(OptionError, match=r"talk\.rttm, line 2: .* is not RTTM: SPEAKER") as caught:
        read_rttm(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("data", [b"", b";; nothing\n", b"\xff\xfe\x00", b"RIFF\x90\x00"])
def test_no_rttm_at_all(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(OptionError, match=r"talk\.rttm"):
        read_rttm(write(tmp_path, data))


def test_one_recording_of_several(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + GOOD.replace("talk", "my_2nd").replace("ann", "bob"), "all.rttm")
    assert turns_of_recording(path, "my 2nd")[0].speaker == "bob"
    with pytest.raises(AudioError, match=r"^third: .*all\.rttm has other recordings \(talk, my_2"):
        turns_of_recording(path, "third")
    write(tmp_path, GOOD.replace("ann", "cy"), "second.rttm")
    assert turns_of_recording(tmp_path, "second")[0].speaker == "cy", "a folder has one for each"
    with pytest.raises(AudioError, match=r"^third: no RTTM file .*third\.rttm"):
        turns_of_recording(tmp_path, "third")


def test_a_file_of_one_recording_fits_any(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, GOOD)
    with caplog.at_level(logging.WARNING, "slimwhisper"):
        for name in ("talk", ""):
            assert turns_of_recording(path, name) == [Turn(0.5, 1.75, "ann")]
        assert caplog.messages == []
        assert turns_of_recording(path, "renamed") == [Turn(0.5, 1.75, "ann")]
    assert "is for talk; its turns are used for this one" in caplog.text
    write(tmp_path, GOOD.replace("ann", "robert"))
    assert turns_of_recording(path, "talk")[0].speaker == "robert", "it is read again"
