"""RTTM files of other programs, and damaged ones."""

import logging
from pathlib import Path

import pytest

from slimwhisper.errors import AudioError, OptionError
from slimwhisper.speakers.diarize import read_rttm, turns_of_recording
from slimwhisper.speakers.turns import Turn

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
