"""Speakers in every format; transcripts without them are as before."""

import json
import re
from dataclasses import replace
from pathlib import Path

from slimwhisper.outputs import DIARIZE, FORMATS, RECORDING, formats_of
from slimwhisper.speakers.diarize import read_rttm
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
