"""The journal remembers every finished file, whatever happens to the journal meanwhile."""

import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimwhisper.errors import OutputError
from slimwhisper.jobs.journal.journal import JOURNAL_NAME, OUR_LINE, Journal, Stamp, Status
from slimwhisper.storage.digests import MERGE, Digests

OPTIONS: dict[str, Any] = {"model": "tiny", "formats": ("txt",), "temperature": (0.0, 0.2)}
STAMP = Stamp("/in/a.wav", 100, 1_700_000_000_123_456_789)


def write(path: Path, *lines: tuple[Stamp, Status]) -> None:
    journal = Journal(path, OPTIONS)
    for stamp, status in lines:
        journal.add(stamp, status, 1.25, None if status == "done" else "why")
    journal.close()


def status(path: Path, stamp: Stamp = STAMP, **options: Any) -> Status | None:
    journal = Journal(path, OPTIONS | options)
    try:
        return journal.status(stamp)
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL_NAME


def test_a_line_says_it_all(path: Path) -> None:
    write(path, (STAMP, "done"), (Stamp("/in/b.wav", None, None), "failed"))
    first, second = map(json.loads, path.read_text().splitlines())
    assert first.pop("time")[:2] == "20"
    assert first == {
        "path": "/in/a.wav",
        "size": 100,
        "mtime_ns": 1_700_000_000_123_456_789,
        "options": {"model": "tiny", "formats": ["txt"], "temperature": [0.0, 0.2]},
        "status": "done",
        "seconds": 1.25,
        "error": None,
    }
    assert (second["status"], second["error"], second["size"]) == ("failed", "why", None)


def test_what_settles_a_file(path: Path) -> None:
    failed, unwritten = Stamp("/in/f.wav", 1, 1), Stamp("/in/u.wav", 1, 1)
    gone = Stamp("/in/gone.wav", None, None)
    write(path, (STAMP, "done"), (failed, "failed"), (unwritten, "unwritten"), (gone, "failed"))
    assert status(path) == "done"
    assert status(path, failed) == "failed"
    assert status(path, unwritten) is None
    assert status(path, gone) is None  # it may be there the next time
    assert status(path, model="base") is None
    assert status(path, beam_size=5) is None
    for changed in (Stamp("/in/a.wav", 101, STAMP.mtime_ns), Stamp("/in/a.wav", 100, 5)):
        assert status(path, changed) is None
    write(path, (failed, "done"))
    assert status(path, failed) == "done"  # tried again, and well


def test_variants(path: Path) -> None:
    """A line counts with any accepted variant; new lines record the one that was chosen."""
    wide, narrow = {"dtype": "float32"}, {"dtype": "float16"}
    new = Stamp("/in/new.wav", 1, 1)
    journal = Journal(path, OPTIONS, variants=[wide, narrow])
    journal.add(STAMP, "done", 1.0)
    journal.record_variant(narrow)
    journal.add(new, "done", 1.0)
    assert journal.status(STAMP) == journal.status(new) == "done"
    journal.close()
    assert [json.loads(line)["options"]["dtype"] for line in path.read_text().splitlines()] == [
        "float32",
        "float16",
    ]
    assert status(path, STAMP, **wide) == status(path, new, **narrow) == "done"
    assert status(path, STAMP, **narrow) is status(path, new, **wide) is status(path) is None
    both = Journal(path, OPTIONS, variants=[narrow, wide])
    assert both.status(STAMP, before=True) == both.status(new, before=True) == "done"
    both.close()


def test_options_in_another_order(path: Path) -> None:
    write(path, (STAMP, "done"))
    journal = Journal(path, dict(reversed(OPTIONS.items())))
    assert journal.status(STAMP) == "done"
    journal.close()


def test_a_line_is_on_the_disk_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    write(path, (STAMP, "done"), (STAMP, "failed"))
    assert [data.count(b"\n") for data in synced] == [1, 2]


def test_this_run_and_those_before(path: Path) -> None:
    write(path, (STAMP, "done"))
    new = Stamp("/in/new.wav", 1, 1)
    journal = Journal(path, OPTIONS)
    journal.add(new, "done", 1.0)
    assert journal.status(new) == "done"
    assert journal.status(new, before=True) is None
    assert journal.status(STAMP, before=True) == "done"
    journal.close()
    forgetful = Journal(path, OPTIONS, forget=True)
    assert forgetful.status(STAMP) is None
    forgetful.close()


def test_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.wav").write_bytes(b"12345")
    os.utime("a.wav", ns=(1, 1_234_567_890_123_456_789))
    assert Stamp.of(Path("a.wav")) == Stamp(str(tmp_path / "a.wav"), 5, 1_234_567_890_123_456_789)
    assert Stamp.of(Path("gone.wav")) == Stamp(str(tmp_path / "gone.wav"), None, None)


@pytest.mark.parametrize(
    "name", ["new\nline", "tab\t\"q\" 'q'", "日本", "\u2028", os.fsdecode(b"latin-\xe9\xff")]
)
def test_odd_names(path: Path, name: str) -> None:
    stamp = Stamp(f"/in/{name}.wav", 1, 1)
    write(path, (stamp, "done"))
    data = path.read_bytes()
    assert data.isascii() and data.count(b"\n") == 1
    assert json.loads(data)["path"] == stamp.path
    assert status(path, stamp) == "done"


@pytest.mark.parametrize("cut", [1, 2, 30, 150])
def test_a_torn_last_line_costs_itself_alone(path: Path, cut: int) -> None:
    last = Stamp("/in/last.wav", 1, 1)
    write(path, (STAMP, "done"), (last, "done"))
    os.truncate(path, path.stat().st_size - cut)
    assert status(path) == "done"
    assert status(path, last) == ("done" if cut == 1 else None)
    new = Stamp("/in/new.wav", 1, 1)
    write(path, (new, "done"), (last, "done"))
    assert [status(path, s) for s in (STAMP, last, new)] == ["done"] * 3
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert path.read_bytes().endswith(b"\n")


def test_damaged_options_cost_their_line_alone(path: Path) -> None:
    last = Stamp("/in/last.wav", 1, 1)
    write(path, (STAMP, "done"), (last, "done"))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(b'"options": {"', b'"options": {\xff"') + second)
    assert (status(path), status(path, last)) == (None, "done")


def test_a_torn_line_of_one_byte(path: Path) -> None:
    path.write_bytes(b"{")
    write(path, (STAMP, "done"))
    assert path.read_bytes().startswith(b"{\n{") and status(path) == "done"


def test_lines_that_make_no_sense(path: Path) -> None:
    write(path, (STAMP, "done"))
    good = path.read_bytes()
    nonsense = b'[]\n{"status": "done"}\n\n{"path": 3}\nnull\n\xff\xfe\n{"status": ["x"]}\n\0\0\0\n'
    path.write_bytes(nonsense + good + nonsense)
    assert status(path) == "done"


def test_a_line_of_many_brackets(path: Path) -> None:
    write(path, (STAMP, "done"))
    deep = b'{"path": "a", "status": "done", "options": ' + b"[" * 5000
    path.write_bytes(b"[" * 5000 + b"\n" + deep + b"\n" + path.read_bytes())
    assert status(path) == "done"


def test_a_journal_is_not_written_through_a_link(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(precious)
    with pytest.raises(OutputError, match=r": is a link, which a journal is not written through"):
        Journal(path, OPTIONS)
    assert precious.read_text() == "mine"


def test_one_job_at_a_time(path: Path) -> None:
    journal = Journal(path, OPTIONS)
    code = (
        "import sys; from pathlib import Path\n"
        "from slimwhisper.jobs.journal.journal import Journal\n"
        "Journal(Path(sys.argv[1]), {})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "another job is writing to this folder; wait for it" in run.stderr.splitlines()[-1]
    with pytest.raises(OutputError, match="another job"):
        Journal(path, OPTIONS)
    journal.close()
    Journal(path, OPTIONS).close()


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    write(path, (STAMP, "done"))
    assert status(path) == "done"


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, (STAMP, "done"))
    journal = Journal(path, OPTIONS)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:20]))
    new = Stamp("/in/new.wav", 1, 1)
    with pytest.raises(OutputError, match=r"the journal cannot be written [(]No space"):
        journal.add(new, "done", 1.0)
    monkeypatch.undo()
    assert journal.status(new) is None
    journal.add(new, "done", 1.0)
    journal.close()
    assert status(path) == status(path, new) == "done"


def test_a_journal_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(
        OutputError, match=r"the journal cannot be written [(]Is a directory"
    ) as caught:
        Journal(tmp_path, OPTIONS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "stamp",
    [
        *(STAMP, Stamp("s3://b/a.wav", 5, None, 'e"\\1'), Stamp('/in/\\"}, \n\udce9.wav', 0, -5)),
        Stamp('/in/{"path": "x"}, "status": "done", "seconds": .wav', 1, None),
    ],
)
def test_both_ways_to_read_a_line(
    path: Path, stamp: Stamp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the expression for our own lines finds is what JSON says."""
    strange = {"initial_prompt": 'a, "status": "failed", "seconds": 1\\', "best_of": 5}
    for number, what in enumerate(("done", "failed")):
        place = path.with_name(f"{number}.jsonl")
        journal = Journal(place, OPTIONS | strange)
        journal.add(stamp, "done" if what == "done" else "failed", None, 'x"}, "time": "')
        journal.close()
        (line,) = place.read_bytes().splitlines(keepends=True)
        assert OUR_LINE.match(line) and not OUR_LINE.match(line[:-3])
        assert status(place, stamp, **strange) == what
        with monkeypatch.context() as patch:
            patch.setattr("slimwhisper.jobs.journal.journal.OUR_LINE", re.compile(rb"never"))
            assert status(place, stamp, **strange) == what
    braces = {"initial_prompt": '{"}, "status": "failed'}
    journal = Journal(path, OPTIONS | braces)
    journal.add(stamp, "done", 1.0)
    journal.close()
    assert OUR_LINE.match(path.read_bytes()) is None
    assert status(path, stamp, **braces) == "done"


def test_digests() -> None:
    rng = random.Random(0)
    numbers = [rng.getrandbits(64) for _ in range(3 * MERGE)]
    known, new, unknown = (numbers[i::3] for i in range(3))
    digests = Digests(np.array(known, np.uint64))
    for number in [*new, 0, (1 << 64) - 1]:
        digests.add(number)
    assert all(n in digests for n in [*known, *new, 0, (1 << 64) - 1])
    assert not any(n in digests for n in unknown)


def test_a_long_journal_takes_little_memory(path: Path) -> None:
    write(path, (STAMP, "done"))
    line = path.read_text()
    with path.open("w") as file:
        for number in range(50_000):
            file.write(line.replace("/in/a.wav", f"/in/{number}.wav"))
    tracemalloc.start()
    try:
        journal = Journal(path, OPTIONS)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000 and peak < 2_000_000  # 8 bytes each: 400,000
    assert journal.status(Stamp("/in/49999.wav", 100, STAMP.mtime_ns)) == "done"
    assert journal.status(Stamp("/in/50000.wav", 100, STAMP.mtime_ns)) is None
    journal.close()
