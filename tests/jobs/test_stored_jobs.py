"""Jobs whose inputs or outputs are in a store, with a model that needs no weights."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from slimwhisper.errors import OutputError
from slimwhisper.files import Folder
from slimwhisper.storage import tables
from tests.support.command import RunCLI
from tests.support.fake_model import FakeModel
from tests.support.memory_store import fill, journal, tar_of, texts

pytestmark = pytest.mark.usefixtures("fake_model")
FILES: dict[str, str | bytes] = {"in/a.wav": "one", "in/x/a.mp3": "two", "in/x/c.wav": "bad"}
WRITTEN = {"a.wav.txt": "one\n", "x/a.mp3.txt": "two\n"}


@pytest.fixture
def run(run_cli: RunCLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCLI:
    monkeypatch.chdir(tmp_path)
    return partial(run_cli, "transcribe", "--model", "tiny")


def test_from_a_store_to_a_store(store: Any, run: Any, fake_model: FakeModel) -> None:
    fill(store, FILES)
    to = ("-o", "memory://out/t", "-f", "txt")
    first = run("memory://in", *to, "--log_json", "True")
    assert first.status == 1
    assert texts(store, "out/t") == WRITTEN
    events = [json.loads(line) for line in first.out.splitlines()]
    files = {e["path"]: e for e in events if e["event"] == "file"}
    assert files["memory://in/a.wav"]["outputs"] == ["memory://out/t/a.wav.txt"]
    assert files["memory://in/x/c.wav"]["error"].startswith("memory://in/x/c.wav: damaged")
    assert events[-1]["journal"] == "memory://out/t/slimwhisper-journal/"
    lines = [(line["path"], line["status"]) for line in journal(store, "out/t")]
    done = dict(zip(FILES, ("done", "done", "failed"), strict=True))
    assert sorted(lines) == [(f"memory://{path}", status) for path, status in done.items()]
    assert len(fake_model.taken) == 3
    again = run("memory://in", *to)
    assert "Nothing to do: 2 already done, 1 failed in an earlier run." in again.err
    fill(store, {"in/a.wav": "changed", "in/new.wav": "new"})
    run("memory://in", *to)
    assert texts(store, "out/t") == WRITTEN | {"a.wav.txt": "changed\n", "new.wav.txt": "new\n"}
    assert len(fake_model.taken) == 5
    run("memory://in", *to, "--skip_existing", "True", "--beam_size", "None")
    assert len(fake_model.taken) == 6  # the bad one


def test_from_a_folder_to_a_store(store: Any, run: Any) -> None:
    """Outputs have the names and contents that they have in a folder; one file keeps no journal."""
    Path("in/x").mkdir(parents=True)
    for name, text in FILES.items():
        Path(name).write_text(str(text))
    run("in", "-o", "memory://out", "-f", "txt")
    assert texts(store, "out") == {"a.txt": "one\n", "x/a.txt": "two\n"}
    assert "Nothing to do" in run("in", "-o", "memory://out", "-f", "txt").err
    run("in/a.wav", "-o", "memory://all")
    run("in/a.wav", "-o", "here")
    there = texts(store, "all")
    assert sorted(there) == [f"a.{name}" for name in ("json", "srt", "tsv", "txt", "vtt")]
    assert {p.name: p.read_text() for p in Path("here").iterdir()} == there
    assert journal(store, "all") == []


def test_containers(store: Any, run: Any) -> None:
    fill(store, {"w/s0.tar": tar_of({"a.wav": b"one", "b.wav": b"two"})})
    run("memory://w/*.tar", "-o", "out", "-f", "txt")
    assert "2 already done" in run("memory://w/*.tar", "-o", "out", "-f", "txt").err
    Path("c.wav").write_text("three")
    Path("m.jsonl").write_text('{"audio_filepath": "c.wav"}\nno\n')
    done = run("m.jsonl", "-o", "out", "-f", "txt")
    assert done.status == 1 and "line 2 is not a JSON object" in done.err
    written = {str(p): p.read_text() for p in Path("out").rglob("*.txt")}
    texts = {"s0.tar/a.wav": "one\n", "s0.tar/b.wav": "two\n", "c.wav": "three\n"}
    assert written == {f"out/{name}.txt": text for name, text in texts.items()}


def test_a_store_that_does_not_answer(store: Any, run: Any) -> None:
    """Its recordings have not failed: the next run tries them again."""
    fill(store, {"in/a.wav": "one", "in/b.wav": "two"})
    broken = Mock(side_effect=OSError("503 from https://h/x?Signature=s3cret"))
    with patch.object(type(store), "cat_file", broken):
        first = run("memory://in", "-o", "out", "-f", "txt")
    assert first.status == 1 and "s3cret" not in first.err
    assert first.err.count("cannot be read from its store (503 from https://h/x)") == 2
    assert "s3cret" not in Path("out/slimwhisper-journal.jsonl").read_text()
    assert "2 of 2 files transcribed" in run("memory://in", "-o", "out", "-f", "txt").err

    with patch.object(type(store), "pipe_file", broken):
        first = run("memory://in", "-o", "memory://out", "-f", "txt")
    assert first.status != 0 and "cannot be written (503" in first.err and "s3cret" not in first.err
    assert "2 of 2 files transcribed" in run("memory://in", "-o", "memory://out", "-f", "txt").err


# -- parquet -------------------------------------------------------------------------------------


@pytest.fixture
def rows() -> Any:
    """Reads the rows of the table, by path; each path has one."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")

    def read() -> dict[str, dict[str, Any]]:
        found = parquet.read_table("out/transcripts").to_pylist()
        assert len({row["path"] for row in found}) == len(found)
        return {row["path"]: row for row in found}

    return read


def test_parquet(store: Any, run: Any, rows: Any) -> None:
    fill(store, FILES)
    to = ("-o", "out", "-f", "parquet")
    assert run("memory://in", *to).status == 1
    found = rows()
    assert {path: (row["text"], row["error"]) for path, row in found.items()} == {
        "memory://in/a.wav": (" one", None),
        "memory://in/x/a.mp3": (" two", None),
        "memory://in/x/c.wav": (None, "memory://in/x/c.wav: damaged; copy the file again"),
    }
    one = found["memory://in/a.wav"]
    assert (one["language"], one["seconds"], one["words"]) == ("en", 3.0, None)
    assert one["segments"][0]["tokens"] == [1]
    assert json.loads(one["options"])["model"] == "tiny"
    assert "Nothing to do: 2 already done, 1 failed" in run("memory://in", *to).err

    (part,) = Path("out/transcripts").iterdir()
    part.rename(part.with_name(part.name.replace("part-2", "part-3")))  # the clock is set back
    fill(store, {"in/x/c.wav": "good now", "in/a.wav": "changed"})
    assert run("memory://in", *to).status == 0
    texts = {path: row["text"] for path, row in rows().items()}
    assert texts == {
        "memory://in/a.wav": " changed",
        "memory://in/x/a.mp3": " two",
        "memory://in/x/c.wav": " good now",
    }


def test_rows_that_cannot_be_written_wait(
    store: Any, run: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recorded once they are written; what comes meanwhile is done by the next run."""
    monkeypatch.setattr(tables, "ROWS", 1)
    writing, full = Folder.write, ["once"]

    def write(folder: Folder, name: str, data: bytes) -> None:
        if full:
            raise OutputError(f"no space, {full.pop()}")
        writing(folder, name, data)

    monkeypatch.setattr(Folder, "write", write)
    fill(store, FILES)
    first = run("memory://in", "-o", "out", "-f", "parquet")
    assert first.status == 1 and first.err.count("no space") == 1
    assert sorted(rows()) == ["memory://in/a.wav", "memory://in/x/c.wav"]
    again = run("memory://in", "-o", "out", "-f", "parquet").err
    assert "1 of 1 file transcribed, 0 failed, 1 already done, 1 failed in an earlier run" in again
    assert len(rows()) == 3


def test_parquet_in_a_store(store: Any, run: Any, rows: Any) -> None:
    """Its rows say what is done, and not the journal."""
    fill(store, FILES)
    to = ("-o", "memory://out", "-f", "parquet")
    run("memory://in", *to)
    assert len(store.find("/out/transcripts")) == 1 and len(journal(store, "out")) == 3
    store.rm("/out/slimwhisper-journal", recursive=True)
    assert "Nothing to do: 2 already done" in run("memory://in", *to).err
    assert "2 of 3 files transcribed" in run("memory://in", *to, "--overwrite", "True").err
    store.rm("/out/transcripts", recursive=True)
    assert "2 of 3 files transcribed" in run("memory://in", *to).err
    store.pipe_file("/out/transcripts/part-x.parquet", b"PAR1" * 5)
    assert "part-x.parquet: not a table that slim" in run("memory://in", *to).err


def test_the_newest_row_counts(run: Any, rows: Any) -> None:
    """A file that is gone for a while keeps its row."""
    one, to = Path("a.wav"), ("m.jsonl", "-o", "out", "-f", "parquet")
    one.write_text("one")
    Path("m.jsonl").write_text('{"audio_filepath": "a.wav"}')
    for flags in ((), ("--language", "de"), ()):
        assert "1 of 1 file transcribed" in run(*to, *flags).err
    one.rename("b.wav")
    assert "0 of 1 file transcribed, 1 failed" in run(*to).err
    Path("b.wav").rename(one)
    assert "1 already done" in run(*to).err
    assert [row["text"] for row in rows().values()] == [" one"]


def test_parquet_in_a_folder_killed(store: Any, run: Any, rows: Any) -> None:
    fill(store, FILES)
    to = ("-o", "out", "-f", "parquet")
    run("memory://in", *to)
    marks, before = Path("out/slimwhisper-journal.jsonl"), rows()
    lines = marks.read_text().splitlines(keepends=True)
    marks.write_text(lines[0] + lines[1][:20])
    for _ in range(2):
        assert "Nothing to do: 2 already done, 1 failed" in run("memory://in", *to).err
        assert rows() == before
    # two rows of one recording: a job killed before it removed the older one
    (part,) = Path("out/transcripts").iterdir()
    part.with_name("part-00000000-older.parquet").write_bytes(part.read_bytes())
    with patch.object(Folder, "read", autospec=True, side_effect=Folder.read) as read:
        run("memory://in", *to)
    assert rows() == before
    assert read.call_count == 4  # once at each end: meanwhile, another task may replace a part
