"""The options about speakers: what they name, and what is not there."""

from pathlib import Path
from typing import Any

import pytest

from slimwhisper import cli
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.jobs.flags import options_of
from slimwhisper.options import make_options
from slimwhisper.speakers import choice
from slimwhisper.speakers.choice import SpeakerOptions
from tests.support.checkpoints import facts_of, tiny_dims

FACTS = facts_of(tiny_dims())
pytestmark = pytest.mark.usefixtures("speakers_here")


def test_a_folder_of_voices() -> None:
    """Each recording is named after its file; the flag adds to `--known_speaker`."""
    folder = Path("voices")
    folder.mkdir()
    for name in ("Zoë.wav", "Bo Li.mp3", "notes.txt", "._Zoë.wav"):
        (folder / name).write_bytes(b"1")
    expected = (("Bo Li", str(folder / "Bo Li.mp3")), ("Zoë", str(folder / "Zoë.wav")))
    assert choice.voices_in(folder) == expected
    flags = ("--diarize", "embedding", "--known_speaker", "Ann=a=1.wav", "--voices", "voices")
    arguments = cli.build_parser().parse_args(["transcribe", "talk.wav", *flags])
    assert options_of(arguments)["known_speakers"] == (("Ann", "a=1.wav"), *expected)
    (folder / "Zoë.flac").write_bytes(b"1")
    problems = {"absent": "absent: .*give a folder", "empty": "empty: .*no recordings; put one"}
    for wrong, message in (problems | {"voices": "'Zoë' is given twice"}).items():
        with pytest.raises(OptionError, match=message):
            choice.voices_in(wrong)


def test_accepted() -> None:
    for known in ([["Ann", "ann.wav"]], {"Ann": Path("ann.wav")}):  # as JSON has pairs
        options = make_options(FACTS, diarize="embedding", speakers=2, known_speakers=known)
        assert options.known_speakers == (("Ann", "ann.wav"),)
        assert options.word_timestamps, "speakers are assigned by word"
    assert make_options(FACTS, diarize="talk.rttm").diarize == "talk.rttm"


@pytest.mark.parametrize("backend", ["embedding", "pyannote"])
def test_not_installed(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(choice, "missing", lambda backend: ["x"])
    with pytest.raises(DependencyError, match=f"{backend}.* needs x: pip install "):
        make_options(FACTS, diarize=backend)


def test_what_is_missing_is_found_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    row = choice.Backend("x", ("json", "no_such_package", "no_such.part"), "pip install x")
    monkeypatch.setitem(choice.BACKENDS, "x", row)
    assert choice.missing("x") == ["no_such_package", "no_such.part"]


def test_a_job_knows_files_by_their_content(tmp_path: Path) -> None:
    def known(path: str) -> Any:
        return SpeakerOptions.identify({"diarize": "embedding", "known_speakers": (("Ann", path),)})

    before = known("ann.wav")
    Path("same.wav").write_bytes(Path("ann.wav").read_bytes())
    assert known("same.wav") == before
    Path("ann.wav").write_bytes(b"2")
    assert known("ann.wav") != before
    file, folder = (SpeakerOptions.identify({"diarize": given}) for given in ("talk.rttm", "."))
    Path("moved.rttm").write_bytes(Path("talk.rttm").read_bytes())
    assert SpeakerOptions.identify({"diarize": "moved.rttm"}) == file
    assert SpeakerOptions.identify({"diarize": "."}) != folder
    Path("talk.rttm").write_bytes(Path("moved.rttm").read_bytes() * 2)
    assert SpeakerOptions.identify({"diarize": "talk.rttm"}) != file
    assert SpeakerOptions.identify({"diarize": "embedding"}) == {} == SpeakerOptions.identify({})
