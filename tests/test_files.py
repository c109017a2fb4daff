"""Which files are read, where their outputs go, and that outputs are whole or absent."""

import json
from pathlib import Path

import pytest

from slimwhisper.errors import OutputError
from slimwhisper.files import Recording, find_recordings, prepare_output_dir, write_outputs
from slimwhisper.types import Segment, Transcript
from slimwhisper.writers import FORMATS

TRANSCRIPT = Transcript(
    text=" hello wörld",
    segments=[
        Segment(0, 0, 0.0, 1.5, " hello", [1], 0.0, -0.5, 1.0, 0.1),
        Segment(1, 0, 61.25, 3605.0, " wörld", [2], 0.0, -0.5, 1.0, 0.1),
    ],
    language="en",
)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def outputs(arguments: list[str], root: Path = Path("out")) -> dict[str, str]:
    recordings, _ = find_recordings(arguments, root)
    return {r.path.as_posix(): r.output.relative_to(root).as_posix() for r in recordings}


def test_a_folder_is_mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "in/a.mp3", "in/b/a.WAV", "in/b/talk.2024.flac", "in/notes.txt", "in/b/x.srt")
    assert outputs(["in"]) == {
        "in/a.mp3": "a",
        "in/b/a.WAV": "b/a",
        "in/b/talk.2024.flac": "b/talk.2024",
    }


def test_same_names_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "a.mp3", "a.wav", "x/a.mp3", "y/z/a.mp3", "y/b.mp3")
    assert outputs(["a.mp3", "a.wav"]) == {"a.mp3": "a.mp3", "a.wav": "a.wav"}
    assert outputs(["x/a.mp3", "y/z/a.mp3", "y/b.mp3"]) == {
        "x/a.mp3": "x/a.mp3",
        "y/z/a.mp3": "y/z/a.mp3",
        "y/b.mp3": "b",
    }
    assert outputs(["x", "y/z"]) == {"x/a.mp3": "x/a.mp3", "y/z/a.mp3": "y/z/a.mp3"}
    assert outputs(["x/a.mp3", "x/a.mp3"]) == {"x/a.mp3": "a"}


def test_odd_names_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["two words.mp3", 'it\'s "q".mp3', "naïve-日本.mp3", "new\nline.mp3", "-dash.mp3"]
    touch(tmp_path, *(f"in/{n}" for n in names))
    found = outputs(["in"])
    assert sorted(found.values()) == sorted(n.removesuffix(".mp3") for n in names)
    for recording in find_recordings(["in"], tmp_path / "out")[0]:
        write_outputs(TRANSCRIPT, recording, ["txt"])
        assert recording.output.with_name(recording.output.name + ".txt").exists()


def test_any_named_file_is_taken_but_in_folders_only_media(tmp_path: Path) -> None:
    touch(tmp_path, "voice", "folder/voice", "empty/notes.txt")
    recordings, errors = find_recordings(
        [str(tmp_path / n) for n in ("voice", "folder", "empty", "gone.mp3")], tmp_path
    )
    assert [r.path.name for r in recordings] == ["voice"]
    messages = [str(e) for e in errors]
    assert len(messages) == 3
    assert "no audio or video files in this folder" in messages[0]
    assert "no such file" in messages[2]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(tmp_path: Path, form: str) -> None:
    write_outputs(TRANSCRIPT, Recording(Path("in.wav"), tmp_path / "in"), [form])
    text = (tmp_path / f"in.{form}").read_text(encoding="utf-8")
    expected = {
        "txt": "hello\nwörld\n",
        "vtt": "WEBVTT\n\n00:00.000 --> 00:01.500\nhello\n\n01:01.250 --> 01:00:05.000\nwörld\n\n",
        "srt": "1\n00:00:00,000 --> 00:00:01,500\nhello\n\n"
        "2\n00:01:01,250 --> 01:00:05,000\nwörld\n\n",
        "tsv": "start\tend\ttext\n0\t1500\thello\n61250\t3605000\twörld\n",
    }
    if form == "json":
        assert json.loads(text) == TRANSCRIPT.as_dict()
    else:
        assert text == expected[form]


def test_a_failed_write_leaves_the_old_output_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(Path("in.wav"), tmp_path / "in")
    (tmp_path / "in.txt").write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slimwhisper.files.write_transcript", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_outputs(TRANSCRIPT, recording, ["txt"])
    assert (tmp_path / "in.txt").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]


def test_an_output_never_replaces_its_input(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("audio, it says")
    with pytest.raises(OutputError, match="is the input itself"):
        write_outputs(TRANSCRIPT, Recording(source, tmp_path / "in"), ["txt"])
    assert source.read_text() == "audio, it says"


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write there") as caught:
        prepare_output_dir(tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)
