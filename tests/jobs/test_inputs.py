"""Which files are read, and where their outputs go."""

import io
import os
import random
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import pytest

from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.files import Fingerprint, InputFile
from slimwhisper.jobs.inputs import Inputs, StandardInput, distinct
from slimwhisper.jobs.members import HeldFile
from tests.support.fake_model import fetched
from tests.support.paths import SAMPLES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trickle(*pieces: bytes) -> Mock:
    """A pipe that gives one piece at a time."""
    return Mock(read1=Mock(side_effect=chain(pieces, repeat(b""))))


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def outputs(*arguments: str, stdin: bytes = b"") -> dict[str, str]:
    files = distinct(Inputs(arguments, StandardInput(io.BytesIO(stdin))).list())
    found = [r for r in files if isinstance(r, InputFile)]
    result = {str(r.path): r.output for r in found}
    names = {output.casefold() for output in result.values()}
    assert len(found) == len(result) and len(names) == len(result)
    assert not any(".." in r.output.split("/") or r.output.startswith("/") for r in found)
    assert all(r.fingerprint == Fingerprint.of(Path(str(r.path))) for r in found)
    return result


def errors(*arguments: str, stdin: bytes = b"") -> list[str]:
    found = Inputs(arguments, StandardInput(io.BytesIO(stdin))).list()
    return [str(e) for e in found if isinstance(e, AudioError)]


def test_a_folder_is_mirrored() -> None:
    touch("in/a.mp3", "in/b/a.WAV", "in/b/talk.2024.flac", "in/notes.txt", "in/b/x.srt")
    touch("in/b/.slimwhisper-0123.part")
    expected = {"in/a.mp3": "a", "in/b/a.WAV": "b/a", "in/b/talk.2024.flac": "b/talk.2024"}
    assert outputs("in") == outputs("in/") == outputs("./in/.") == expected
    assert list(outputs("in/b/..").values()) == list(expected.values())
    assert Fingerprint.of(Path("in/b/../a.mp3")) == Fingerprint.of(Path("in/a.mp3"))
    assert outputs(".") == {path: f"in/{output}" for path, output in expected.items()}


def test_files_by_name() -> None:
    """They mirror folders only if two of them share a name."""
    touch("x/a.mp3", "y/z/a.mp3", "y/b.mp3")
    plain, both = {"x/a.mp3": "a", "y/b.mp3": "b"}, ["x/a.mp3", "y/z/a.mp3", "y/b.mp3"]
    assert outputs("x/a.mp3", "y/b.mp3") == plain
    assert outputs(*both) == {path: path.removesuffix(".mp3") for path in both}
    assert outputs("x", "y/z") == {"x/a.mp3": "x/a", "y/z/a.mp3": "y/z/a"}


def test_what_is_named_twice_is_transcribed_once() -> None:
    touch("x/a.mp3", "x/y/b.mp3")
    Path("link").symlink_to("x", target_is_directory=True)
    assert outputs("x/a.mp3", "./x/a.mp3", "x/y/../a.mp3") == {"x/a.mp3": "a"}
    assert list(outputs("x/a.mp3", "link/a.mp3")) == ["x/a.mp3"]
    both = {"x/a.mp3": "a", "x/y/b.mp3": "y/b"}
    assert outputs("x/a.mp3", "x", "x/y", "x/y/b.mp3") == both
    assert list(outputs("x", "link", "link/y")) == list(both)


ODD = ["two words", 'it\'s "q"', "naïve-日本", "new\nline", "-dash", "[1]*?", "%d", "a.txt"]
STEMS = [*ODD, "a", "A", "a.mp3", "a.mp3.wav", "ß", "SS", os.fsdecode(b"latin-\xe9")]


@pytest.mark.parametrize("seed", range(8))
def test_names_of_any_tree(seed: int) -> None:
    """Outputs do not collide, and have the same names however their recordings are named."""
    rng = random.Random(seed)
    parts = ("in", "in/a.txt", "in/b/[c]"), STEMS, (".mp3", ".wav", ".WAV", ".dat", "")
    paths = ("{}/{}{}".format(*map(rng.choice, parts)) for _ in range(40))
    touch(*{path.casefold(): path for path in paths if path != "in/a.txt"}.values())
    found = outputs("in")
    assert found and found == outputs("in/**") == outputs("in/")
    listed = os.fsencode("\0".join([*found, ""]))
    assert outputs("-", stdin=listed) == {path: f"in/{output}" for path, output in found.items()}
    for path, output in found.items():
        relative = Path(path).relative_to("in")
        assert outputs(path) == {path: Path(output).name}
        assert Path(output) in (relative, relative.with_suffix(""))


def test_files_without_an_audio_suffix_give_way() -> None:
    names = ["talk", "talk.mp3", "talk.dat", "talk.bin", "other.dat", "song.mp3", "song.dat"]
    touch(*names)
    expected = ["talk_", "talk", "talk.dat", "talk.bin", "other", "song", "song.dat"]
    assert list(outputs(*names).values()) == expected
    touch(*(f"{output}.txt" for output in expected))  # as the job does
    assert list(outputs(*names).values()) == expected
    touch("in/a.mp3", "in/a.txt/b.wav", "in/Talk.mp3", "in/talk.wav", "in/ß.mp3", "in/SS.wav")
    alike = ["a.mp3", "a.txt/b", "Talk.mp3", "talk.wav", "ß.mp3", "SS.wav"]
    assert sorted(outputs("in").values()) == sorted(alike)


def test_any_named_file_is_taken_but_in_folders_only_media() -> None:
    touch("voice", "folder/voice", "empty/notes.txt")
    arguments = ("voice", "folder", "empty", "gone.mp3", "no*thing")
    assert list(outputs(*arguments)) == ["voice"]
    messages = errors(*arguments)
    assert len(messages) == 4
    assert "folder: no audio or video files in this folder" in messages[0]
    assert "gone.mp3: no such file" in messages[2]
    assert "no*thing: matches no audio or video files" in messages[3]
    with pytest.raises(OptionError, match="name is empty"):  # not the current folder
        outputs("voice", "")


def test_links_and_pipes() -> None:
    touch("elsewhere/a.mp3", "in/b.mp3")
    Path("in/folder").symlink_to(Path.cwd() / "elsewhere", target_is_directory=True)
    Path("in/loop").symlink_to(Path.cwd() / "in", target_is_directory=True)
    Path("in/file.mp3").symlink_to(Path.cwd() / "elsewhere/a.mp3")
    Path("in/broken.mp3").symlink_to("nowhere.mp3")  # reported when it is opened
    Path("in/circle.mp3").symlink_to("circle.mp3")
    os.mkfifo("in/pipe.wav")  # it would wait for somebody who writes
    assert sorted(outputs("in").values()) == ["b", "broken", "circle", "file"]
    assert sorted(outputs("in/**/*.mp3").values()) == ["b", "file"]
    assert errors("-", stdin=b"in/b.mp3\nin/pipe.wav\n") == errors("in/p*.wav") == [
        "in/pipe.wav: not a regular file; drop it from the list"
    ]  # fmt: skip


def test_an_unreadable_folder_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    touch("in/a/x.mp3", "in/b/x.mp3", "in/c/x.mp3")
    scandir = os.scandir

    def closed(path: Path) -> object:
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert list(outputs("in").values()) == ["a/x", "c/x"]
    assert errors("in") == ["in/b: cannot be listed (Permission denied); check its permissions"]
    assert outputs("in/b/x.mp3") == {"in/b/x.mp3": "x"}


def test_globs() -> None:
    touch("in/a/x.mp3", "in/a/notes.txt", "in/b/x.mp3", "in/b/c/y.wav", "in/raw.dat", "in/.h/z.mp3")
    every = {"in/a/x.mp3": "a/x", "in/b/x.mp3": "b/x", "in/b/c/y.wav": "b/c/y"}
    assert outputs("in/**/*.mp3") == {k: v for k, v in every.items() if k.endswith("mp3")}
    assert outputs("in/**") == every  # `in` itself is among its matches
    assert outputs("in/.h/*") == outputs("in/.h") == {"in/.h/z.mp3": "z"}
    assert outputs("in/*") == outputs("in/[ab]") == outputs("in/**/*") == every
    assert outputs("in/*.dat") == {"in/raw.dat": "raw"}
    assert outputs("in/b/*", "in/a") == every
    touch("in/lit[e]ral.mp3", "in/literal.mp3")
    assert list(outputs("in/lit[e]ral.mp3")) == ["in/lit[e]ral.mp3"]
    touch("S [1]/[x]/a.mp3", "S 1/x/a.mp3")
    assert outputs("S [1]/*/*.mp3") == {"S [1]/[x]/a.mp3": "[x]/a"}
    assert outputs("S [1]/[x]/*") == {"S [1]/[x]/a.mp3": "a"}


@pytest.mark.parametrize("separator", ["\n", "\0", "\r\n"])
def test_lists(separator: str) -> None:
    touch("in/a.mp3", "in/b/c.wav", "in/outside/d.wav", "away/e.wav", "away/f/g.wav")
    touch("in/b/notes.txt")
    away = str(Path("away").absolute())
    os.chdir("in")
    listed = ["a.mp3", "b/", f"{away}/e.wav", "../away/f/", "outside/d.wav", "./b/c.wav"]
    listed += ["gone.mp3", "  "]
    text = separator.join([*listed, "b/notes.txt", ""]).encode()  # as `find` writes it
    root = str(Path.cwd()).lstrip("/")
    assert outputs("-", stdin=text) == {
        "a.mp3": "a",
        "b/c.wav": "b/c",
        f"{away}/e.wav": f"outside{away}/e",
        "../away/f/g.wav": f"outside{away}/f/g",
        "outside/d.wav": f"outside/{root}/outside/d",
    }
    assert errors("-", stdin=text) == ["gone.mp3: no such file; check the list"]
    assert "x.tar: URIs, archives, manifests" in errors("-", stdin=b"x.tar\n")[0]
    assert "nothing on standard input" in errors("-", stdin=b"\n")[0]
    assert "nothing on standard input" in errors("-", stdin=b"")[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_lists_in_any_encoding(encoding: str) -> None:
    touch("in/a.mp3", "in/日本語の録音.mp3", "in/ü.mp3")
    names = ["in/a.mp3", "in/日本語の録音.mp3", "in/ü.mp3"]
    text = "\r\n".join(names).encode(encoding)
    assert list(outputs("-", stdin=text)) == names
    trickled = StandardInput(trickle(*(text[i : i + 3] for i in range(0, len(text), 3))))
    assert list(trickled.paths()) == names


@pytest.mark.parametrize(
    "path", ["in", ".", "..", "/", "//", "/.", "/./", "./../../../../../../../"]
)
def test_a_list_walks_only_what_it_names_as_a_folder(path: str) -> None:
    touch("in/a.mp3")
    found = list(Inputs(["-"], StandardInput(io.BytesIO(path.encode()))).list())
    remedy = (
        "name a folder in it" if Path(path).resolve() == Path("/") and path[-1] == "/" else "is"
    )
    assert len(found) == 1 and remedy in str(found[0])


HEADS = {
    "RIFF\\n\\x00": b"RIFF\n\x00WAVEfmt \x10\x00\x00\x00\x01\x00",
    "wav": (SAMPLES / "phone-number.wav").read_bytes(),
    "mp3": b"\xff\xfb\x90\x64" + bytes(40),
    "adts": bytes.fromhex("fff1508003dffcde02004c61766336302e33312e3130320042202080"),
    "amr": b"#!AMR\n" + b"|" * 99,
    "transport stream": b"G@\x11\x10\x00B\xf0%" + b"\xff" * 60,
    "silence": bytes(99),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_recording_on_standard_input(head: bytes) -> None:
    for pieces in ([head], [*(head[i : i + 1] for i in range(99)), head[99:]]):
        inputs = Inputs(["-"], StandardInput(trickle(*pieces)))
        (found,) = inputs.list()
        assert isinstance(found, InputFile) and isinstance(found.path, HeldFile)
        assert found.output == str(found.path) == "stdin" and inputs.is_one_file
        assert fetched(found.path) == head
    touch("stdin.wav")
    both = Inputs(["-", "stdin.wav"], StandardInput(io.BytesIO(head))).list()
    assert [one.output for one in both if isinstance(one, InputFile)] == ["stdin_", "stdin"]


def test_what_folders_leave_out() -> None:
    taken = [f"in/x{suffix}" for suffix in sorted(AUDIO_SUFFIXES)]
    touch(*taken, "in/y.txt", "in/y", "in/y.PDF", "in/z.pdf")
    for path in ("in/x.ts", "in/x.mts"):
        Path(path).write_bytes(b"G@\x11\x10\x00" + bytes(400))
    Path("in/code.ts").write_text("import x from 'y'\n")
    hidden = (".Trash-1000", "$RECYCLE.BIN", "#recycle", "@eaDir", "lost+found", "__MACOSX", "._x")
    touch("in/._x.wav", "in/sub/.x.wav", *(f"in/{name}/x.wav" for name in hidden))
    inputs = Inputs(["in"])
    assert [str(one.path) for one in inputs.list() if isinstance(one, InputFile)] == taken
    left_out = {".txt": 1, "without a suffix": 1, ".pdf": 2, ".ts": 1, "hidden": 2}
    assert inputs.selection.left_out == left_out
    assert sorted(outputs("in/*")) == sorted(taken)
    named = ["in/._x.wav", "in/@eaDir/x.wav"]
    assert sorted(outputs("in/@eaDir", "in/@eaDir/*", "in/._x.wav")) == named
    assert outputs("-", stdin=b"in/._x.wav\n") == {"in/._x.wav": "in/._x"}


def test_a_list_is_read_as_it_arrives() -> None:
    stream = trickle(b"a", b".mp3\nb.mp", b"3\n", b"c.mp3")
    paths = StandardInput(stream).paths()
    assert next(paths) == "a.mp3" and stream.read1.call_count == 2
    assert next(paths) == "b.mp3" and stream.read1.call_count == 3
    assert list(paths) == ["c.mp3"]
    null_separated = StandardInput(io.BytesIO(b"a\nb.mp3\0c\n.mp3\0"))
    assert list(null_separated.paths()) == ["a\nb.mp3", "c\n.mp3"]


def test_a_tree_is_walked_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(*(f"in/{a}/{b}/{c}.wav" for a in range(3) for b in range(3) for c in range(3)))
    monkeypatch.setattr(os, "scandir", opened := Mock(wraps=os.scandir))
    walk = distinct(Inputs(["in"]).list())
    assert isinstance(next(walk), InputFile)
    assert opened.call_count == 3  # the top, and one folder of each level
    assert len(list(walk)) == 26 and opened.call_count == 13
    assert isinstance(next(Inputs(["in/**/*.wav"]).list()), InputFile)
    assert opened.call_count <= 20
    opened.reset_mock()
    listed = "".join(f"in/{a}/{b}/{c}.wav\n" for c in range(3) for a in range(3) for b in range(3))
    assert len(outputs("-", stdin=listed.encode())) == 27 and opened.call_count == 9
