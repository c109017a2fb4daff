"""Which files are read, and where their outputs go."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slimwhisper.errors import AudioError
from slimwhisper.jobs.inputs import Inputs, distinct, read_list
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.fingerprints import Fingerprint


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def outputs(*arguments: str, stdin: bytes = b"", endings: Sequence[str] = ("",)) -> dict[str, str]:
    files = distinct(Inputs(arguments, io.BytesIO(stdin), endings).files())
    found = [r for r in files if isinstance(r, InputFile)]
    result = {str(r.path): r.output for r in found}
    names = {(output + ending).casefold() for output in result.values() for ending in endings}
    assert len(found) == len(result) and len(names) == len(result) * len(endings)
    assert not any(".." in r.output.split("/") or r.output.startswith("/") for r in found)
    assert all(r.fingerprint == Fingerprint.of(Path(str(r.path))) for r in found)
    return result


def errors(*arguments: str, stdin: bytes = b"") -> list[str]:
    found = Inputs(arguments, io.BytesIO(stdin)).files()
    return [str(e) for e in found if isinstance(e, AudioError)]


def test_a_folder_is_mirrored() -> None:
    touch("in/a.mp3", "in/b/a.WAV", "in/b/talk.2024.flac", "in/notes.txt", "in/b/x.srt")
    touch("in/b/.slimwhisper-0123.part")
    expected = {"in/a.mp3": "a", "in/b/a.WAV": "b/a", "in/b/talk.2024.flac": "b/talk.2024"}
    assert outputs("in") == outputs("in/") == outputs("./in/.") == expected
    assert list(outputs("in/b/..").values()) == list(expected.values())
    assert outputs(".") == {path: f"in/{output}" for path, output in expected.items()}


def test_names_of_translations_never_collide() -> None:
    both = ("", ".translate")
    touch("in/talk.mp3", "in/talk.TRANSLATE.wav", "in/other.mp3", "in/other.translate.txt")
    assert outputs("in", endings=both) == {
        "in/other.mp3": "other",
        "in/talk.TRANSLATE.wav": "talk.TRANSLATE.wav",
        "in/talk.mp3": "talk.mp3",
    }
    assert outputs("in")["in/talk.mp3"] == "talk"
    touch("a/talk.mp3", "b/talk.translate.mp3", "c/x.wav", "c/x.translate")
    plain = {"a/talk.mp3": "a/talk", "b/talk.translate.mp3": "b/talk.translate"}
    assert outputs("a/talk.mp3", "b/talk.translate.mp3", endings=both) == plain
    assert outputs("c/x.wav", "c/x.translate", endings=both) == {
        "c/x.wav": "x",
        "c/x.translate": "x.translate_",
    }
    Path("c/x.translate.txt").mkdir()  # a mirrored folder
    assert outputs("c", endings=both)["c/x.wav"] == "x.wav"


def test_same_names_never_collide() -> None:
    touch("a.mp3", "a.wav", "x/a.mp3", "y/z/a.mp3", "y/b.mp3")
    assert outputs("a.mp3", "a.wav") == {"a.mp3": "a.mp3", "a.wav": "a.wav"}
    assert outputs("x/a.mp3", "y/b.mp3") == {"x/a.mp3": "a", "y/b.mp3": "b"}
    assert outputs("x/a.mp3", "y/z/a.mp3", "y/b.mp3") == {
        "x/a.mp3": "x/a",
        "y/z/a.mp3": "y/z/a",
        "y/b.mp3": "y/b",
    }
    assert outputs("x", "y/z") == {"x/a.mp3": "x/a", "y/z/a.mp3": "y/z/a"}


def test_what_is_named_twice_is_transcribed_once() -> None:
    touch("x/a.mp3", "x/y/b.mp3")
    Path("link").symlink_to("x", target_is_directory=True)
    assert outputs("x/a.mp3", "./x/a.mp3", "x/y/../a.mp3") == {"x/a.mp3": "a"}
    assert list(outputs("x/a.mp3", "link/a.mp3")) == ["x/a.mp3"]
    both = {"x/a.mp3": "a", "x/y/b.mp3": "y/b"}
    assert outputs("x/a.mp3", "x", "x/y", "x/y/b.mp3") == both
    assert list(outputs("x", "link", "link/y")) == list(both)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.mp3", "a.wav", "b.wav"], {"a.mp3": "a.mp3", "a.wav": "a.wav", "b.wav": "b"}),
        (
            ["a.mp3", "a.wav", "a.mp3.wav"],
            {"a.mp3": "a.mp3", "a.wav": "a.wav", "a.mp3.wav": "a.mp3.wav"},
        ),
        (["Talk.mp3", "talk.wav"], {"Talk.mp3": "Talk.mp3", "talk.wav": "talk.wav"}),
        (["ß.mp3", "SS.wav"], {"ß.mp3": "ß.mp3", "SS.wav": "SS.wav"}),
        (["a.mp3", "a.txt"], {"a.mp3": "a"}),
        (["a.mp3", "a.txt/b.wav", "c.wav"], {"a.mp3": "a.mp3", "a.txt/b.wav": "a.txt/b"}),
    ],
    ids=["suffixes", "suffixes of suffixes", "case", "folded case", "notes", "a folder's name"],
)
def test_names_of_one_folder(names: list[str], expected: dict[str, str]) -> None:
    touch(*(f"in/{name}" for name in names))
    found = outputs("in")
    assert expected.items() <= {p.removeprefix("in/"): o for p, o in found.items()}.items()
    for path, output in found.items():  # a file given by itself has the same output name
        assert outputs(path) == {path: Path(output).name}


def test_files_without_an_audio_suffix_give_way() -> None:
    names = ["talk", "talk.mp3", "talk.dat", "talk.bin", "other.dat", "song.mp3", "song.dat"]
    touch(*names)
    expected = ["talk_", "talk", "talk.dat", "talk.bin", "other", "song", "song.dat"]
    assert list(outputs(*names).values()) == expected


ODD = ["two words", 'it\'s "q"', "naïve-日本", "new\nline", "-dash", "a.b.c", "[1]*?", "%d"]


@pytest.mark.parametrize("stem", [*ODD, os.fsdecode(b"latin-\xe9")])
def test_odd_names_survive(stem: str) -> None:
    name = f"in/{stem}.mp3"
    touch(name)
    assert outputs("in") == outputs(name) == {name: stem}
    assert outputs("-", stdin=os.fsencode(name) + b"\0") == {name: f"in/{stem}"}


def test_any_named_file_is_taken_but_in_folders_only_media() -> None:
    touch("voice", "folder/voice", "empty/notes.txt")
    arguments = ("voice", "folder", "empty", "gone.mp3", "no*thing")
    assert list(outputs(*arguments)) == ["voice"]
    messages = errors(*arguments)
    assert len(messages) == 4
    assert "folder: no audio or video files in this folder" in messages[0]
    assert "gone.mp3: no such file" in messages[2]
    assert "no*thing: matches no audio or video files" in messages[3]


def test_links_and_pipes() -> None:
    touch("elsewhere/a.mp3", "in/b.mp3")
    Path("in/folder").symlink_to(Path.cwd() / "elsewhere", target_is_directory=True)
    Path("in/loop").symlink_to(Path.cwd() / "in", target_is_directory=True)
    Path("in/file.mp3").symlink_to(Path.cwd() / "elsewhere/a.mp3")
    Path("in/broken.mp3").symlink_to("nowhere.mp3")  # reported when it is opened
    Path("in/circle.mp3").symlink_to("circle.mp3")
    os.mkfifo("in/pipe.wav")  # it would wait for somebody who writes
    assert sorted(outputs("in").values()) == ["b", "broken", "circle", "file"]
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
    assert outputs("in/**") == every | {"in/.h/z.mp3": ".h/z"}  # `in` itself is among its matches
    assert outputs("in/*") == outputs("in/[ab]") == outputs("in/**/*") == every
    assert outputs("in/*.dat") == {"in/raw.dat": "raw"}
    assert outputs("in/b/*", "in/a") == every
    touch("in/lit[e]ral.mp3", "in/literal.mp3")
    assert list(outputs("in/lit[e]ral.mp3")) == ["in/lit[e]ral.mp3"]


@pytest.mark.parametrize("separator", ["\n", "\0", "\r\n"])
def test_lists(separator: str) -> None:
    touch("in/a.mp3", "in/b/c.wav", "in/outside/d.wav", "away/e.wav", "away/f/g.wav")
    touch("in/b/notes.txt")
    away = str(Path("away").absolute())
    os.chdir("in")
    listed = ["a.mp3", "b", f"{away}/e.wav", "../away/f", "outside/d.wav", "./b/c.wav", "gone.mp3"]
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
    assert "no paths on standard input" in errors("-", stdin=b"\n")[0]


class Trickle(io.RawIOBase):
    """A pipe that gives one piece at a time."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read1(self, _: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def test_a_list_is_read_as_it_arrives() -> None:
    stream = Trickle(b"a", b".mp3\nb.mp", b"3\n", b"c.mp3")
    paths = read_list(stream)  # type: ignore[arg-type]
    assert next(paths) == "a.mp3" and len(stream.pieces) == 2
    assert next(paths) == "b.mp3" and len(stream.pieces) == 1
    assert list(paths) == ["c.mp3"]
    assert list(read_list(Trickle(b"a\nb.mp3\0c", b"\n.mp3\0"))) == ["a\nb.mp3", "c\n.mp3"]  # type: ignore[arg-type]


def test_a_tree_is_walked_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(*(f"in/{a}/{b}/{c}.wav" for a in range(3) for b in range(3) for c in range(3)))
    opened: list[object] = []
    scandir = os.scandir

    def counting(path: Path) -> object:
        opened.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    walk = distinct(Inputs(["in"]).files())
    assert isinstance(next(walk), InputFile)
    assert len(opened) == 3  # the top, and one folder of each level
    assert len(list(walk)) == 26 and len(opened) == 13
    assert isinstance(next(Inputs(["in/**/*.wav"]).files()), InputFile)
    assert len(opened) < 20
