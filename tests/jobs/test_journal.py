"""The journal remembers every finished file, whatever happens to the journal meanwhile."""

import logging
import os
import random
import shutil
import tempfile
import tracemalloc
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from slimwhisper.errors import OutputError
from slimwhisper.files import Fingerprint, InputFile, Outcome, Status, open_sink
from slimwhisper.jobs import journal as logs
from slimwhisper.jobs.inputs import MERGE, Digests
from slimwhisper.jobs.journal import JOURNAL_NAME, Journal
from tests.support.fuzz import examples
from tests.support.memory_store import journal

OPTIONS: dict[str, Any] = {"model": "tiny", "formats": ("txt",), "temperature": (0.0, 0.2)}
STAMP = Fingerprint("/in/a.wav", 100, 1_700_000_000_123_456_789)
LAST, NEW = Fingerprint("/in/last.wav", 1, 1), Fingerprint("/in/new.wav", 1, 1)
NAMES = ("a", "new\nline", "tab\t\"q\" 'q'", "\u2028", os.fsdecode(b"latin-\xe9\xff"), '\\"}, ')
FINGERPRINTS = [
    *(Fingerprint(f"/in/{name}.wav", size, -5) for name in NAMES for size in (0, 100)),
    Fingerprint("/in/a.wav", 100, 5),
    Fingerprint("s3://b/a.wav", 5, None, 'e"\\1'),
    Fingerprint("s3://b/a.wav", 5, None, "e"),
    Fingerprint("/in/gone.wav", None, None),
]


NONSENSE = (
    *(b"[]", b'{"status": "done"}', b"", b'{"path": 3}', b"null", b"\xff\xfe", b"\0\0\0"),
    *(b'{"status": ["x"]}', b"{", b"[" * 5000, b'{"path": "/in/a.wav", "opt\xff": {}}'),
)


def said(journal: Journal, fingerprint: Fingerprint, output: str = "") -> Status | None:
    path = fingerprint.path
    return journal.status(InputFile(Path(path), output or path, fingerprint))


def outcome(of: Fingerprint, status: Status = "done") -> Outcome:
    """Of a recording whose outputs have its name."""
    return Outcome(of, status, 1.25, None, of.path)


class Jobs(RuleBasedStateMachine):
    """Jobs that are killed at any moment and opened again, in parts or as a whole, with the same or
    with another model, while files are damaged and the clock jumps. What they recorded counts, and
    no more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lines: list[tuple[str, Fingerprint, str, Status]] = []
        self.job: Journal | None = None

    @precondition(lambda self: self.job is None)
    @rule(model=st.sampled_from(("tiny", "base")), shard=st.sampled_from((None, (1, 2), (2, 2))))
    def open(self, model: str, shard: tuple[int, int] | None) -> None:
        options = OPTIONS | {"model": model}
        self.job = Journal(open_sink(str(self.folder)), options, shard=shard)
        self.model, self.path = model, self.folder / logs.file_name(shard)
        self.recorded = 0  # lines, since then
        for each, output in product(FINGERPRINTS, "ab"):
            lines = [line for line in self.lines if line[2] == output]
            last = max((n for n, line in enumerate(lines) if line[3] == "done"), default=0)
            known = {status for *of, _, status in lines[last:] if of == [model, each]}
            # what is not there cannot be done
            settled: tuple[Status, ...] = ("failed",) if each.size is None else ("done", "failed")
            expected = next((status for status in settled if status in known), None)
            assert said(self.job, each, output) == expected, each

    @precondition(lambda self: self.job is not None)
    @rule(
        of=st.lists(st.sampled_from(FINGERPRINTS), min_size=1, max_size=3),
        status=st.sampled_from(("done", "failed", "unwritten")),
        output=st.sampled_from("ab"),
        clock=st.floats(0, 2e9),
    )
    def record(self, of: list[Fingerprint], status: Status, output: str, clock: float) -> None:
        why = None if status == "done" else 'why"}, "x": '
        with patch("time.time", return_value=clock):
            self.job.add(*(Outcome(each, status, 1.25, why, output) for each in of))
        self.lines += [(self.model, each, output, status) for each in of]
        self.recorded += len(of)

    @precondition(lambda self: self.job is not None)
    @rule(cut=st.integers(0, 150))
    def kill(self, cut: int) -> None:
        """In the middle of the last line; one that only lacks its end is whole."""
        self.job.close()
        self.job = None
        if self.recorded:
            os.truncate(self.path, self.path.stat().st_size - cut)
            if cut > 1:
                self.lines.pop()

    @precondition(lambda self: self.job is None)
    @rule(noise=st.sampled_from(NONSENSE), end=st.sampled_from((b"", b"\n")))
    def damage(self, noise: bytes, end: bytes) -> None:
        with (self.folder / JOURNAL_NAME).open("ab") as file:
            file.write(b"\n" + noise + end)

    def teardown(self) -> None:
        if self.job is not None:
            self.job.close()
        shutil.rmtree(self.folder)


def test_jobs_that_are_killed() -> None:
    run_state_machine_as_test(Jobs, settings=examples(60))


def opened(path: Path, **how: Any) -> Journal:
    return Journal(open_sink(str(path.parent)), OPTIONS, **how)


def write(path: Path, *lines: tuple[Fingerprint, Status]) -> None:
    with closing(opened(path)) as journal:
        for fingerprint, status in lines:
            journal.add(outcome(fingerprint, status))


def status(path: Path, fingerprint: Fingerprint = STAMP, **how: Any) -> Status | None:
    with closing(opened(path, **how)) as journal:
        return said(journal, fingerprint)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL_NAME


def test_the_format_on_disk(path: Path) -> None:
    """Byte for byte; the time follows."""
    old = (
        '{"path": "/in/a.wav", "size": 100, "mtime_ns": 1700000000123456789, "options": {"model": '
        '"tiny", "formats": ["txt"], "temperature": [0.0, 0.2]}, "status": "done", "seconds": 1.25,'
        ' "error": null, "output": "/in/a.wav", "time": "2024-01-01T00:00:00+0000"}\n'
        '{"path": "s3://b/a", "size": 5, "mtime_ns": null, "etag": "e", "options": {"model": "tiny"'
        ', "temperature": [0.0, 0.2], "formats": ["txt"]}, "status": "failed", "seconds": null, '
        '"error": "why", "output": "s3://b/a", "time": "2024-01-01T00:00:00+0000"}\n'
    )
    path.write_text(old)
    assert status(path, Fingerprint("s3://b/a", 5, None, "e")) == "failed"
    assert status(path) == "done" and status(path, ignore_earlier=True) is None
    with closing(Journal(open_sink(str(path.parent)), OPTIONS | {"model": "base"})) as journal:
        journal.add(outcome(STAMP))
    assert status(path) is None
    path.unlink()
    write(path, (STAMP, "done"))
    start = old.splitlines()[0].partition(', "time"')[0]
    assert path.read_text().startswith(start)


def test_lines_are_on_disk_soon_and_in_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes()))
    write(path, (STAMP, "done"), (STAMP, "failed"))
    assert [data.count(b"\n") for data in synced] == [1, 2]


def test_a_journal_is_not_written_through_a_link(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    path.symlink_to(precious)
    with pytest.raises(OutputError, match="link"):
        opened(path)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("kind", ["deleted", "renamed", "a link", "a file"])
def test_a_folder_that_is_deleted_or_replaced(tmp_path: Path, kind: str, caplog: Any) -> None:
    """All lines are in the folder that has the outputs from then on."""
    path = tmp_path / "out" / JOURNAL_NAME
    path.parent.mkdir()
    write(path, (LAST, "done"))
    journal = opened(path)
    journal.add(outcome(STAMP))
    path.parent.rename(tmp_path / "old")
    if kind == "deleted":
        (tmp_path / "old" / JOURNAL_NAME).unlink()
    elif kind == "a link":
        path.parent.symlink_to(tmp_path)
    elif kind == "a file":
        path.parent.touch()
        with pytest.raises(OutputError, match="File exists"):
            journal.close()
        return
    journal.add(outcome(NEW))
    journal.close()
    assert journal.log.moved and caplog.text.count("deleted or replaced") == 1
    assert all(status(path, each) == "done" for each in (LAST, STAMP, NEW))
    again = opened(path)
    again.close()
    assert not again.log.moved


def test_one_job_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has locks."""
    journal = opened(path)
    with pytest.raises(OutputError, match="another job"):
        opened(path)
    journal.close()
    opened(path).close()

    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(95, "Operation not supported")))
    write(path, (STAMP, "done"))
    assert status(path) == "done"


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, (STAMP, "done"))
    journal = opened(path)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:20]))
    with pytest.raises(OutputError, match=r"the journal cannot be written [(]No space"):
        journal.add(outcome(NEW))
    monkeypatch.undo()
    journal.add(outcome(LAST))
    journal.close()
    assert [status(path, s) for s in (STAMP, NEW, LAST)] == ["done", None, "done"]


def test_digests() -> None:
    rng = random.Random(0)
    numbers = [rng.getrandbits(64) for _ in range(3 * MERGE)]
    known, new, unknown = (numbers[i::3] for i in range(3))
    digests = Digests(np.array(known, np.uint64))
    assert all(digests.add(number) for number in [*new, 0, (1 << 64) - 1])
    assert not any(digests.add(n) for n in [*known, *new, 0, (1 << 64) - 1])
    assert not any(n in digests for n in unknown)


def test_a_long_journal_takes_little_memory(path: Path) -> None:
    write(path, (STAMP, "done"))
    line = path.read_text()
    with path.open("w") as file:
        for number in range(20_000):
            file.write(line.replace("/in/a.wav", f"/in/{number}.wav"))
    tracemalloc.start()
    try:
        journal = opened(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 250_000 and peak < 1_000_000  # 8 bytes each: 160,000
    assert said(journal, Fingerprint("/in/19999.wav", 100, STAMP.mtime_ns)) == "done"
    assert said(journal, Fingerprint("/in/20000.wav", 100, STAMP.mtime_ns)) is None
    journal.close()


def done(name: str) -> Outcome:
    return outcome(Fingerprint(f"s3://b/{name}", 10, 5))


def test_in_a_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs at once, each with objects of its own; the last lines wait for others."""
    monkeypatch.setattr(logs, "OBJECT", 1500)
    folder = open_sink("memory://out")
    jobs = [Journal(folder, OPTIONS) for _ in range(2)]
    for number in range(40):
        jobs[number % 2].add(done(str(number)))
    assert 0 < len(journal(store, "out")) < 40
    for job in jobs:
        job.close()
    found = journal(store, "out")
    assert len({line["path"] for line in found}) == len(found) == 40
    sizes = [store.size(p) for p in store.find("/out") if p.endswith(".jsonl")]
    assert len(sizes) >= 6 and max(sizes) < 1900
    with closing(Journal(folder, OPTIONS)) as again:
        assert all(said(again, done(str(n)).fingerprint) == "done" for n in range(40))


def test_a_store_that_does_not_answer_for_a_while(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "PERIOD", 0.0)
    one = Journal(open_sink("memory://me:secret@out"), OPTIONS)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "slimwhisper"):
        patch.setattr(type(store), "pipe_file", Mock(side_effect=OSError("503")))
        one.add(done("a"))
        with pytest.raises(OutputError, match=r"cannot be written \(503\)"):
            one.close()
    assert "cannot be written (503)" in caplog.text and "secret" not in caplog.text
    one.add(done("b"))
    one.close()
    assert len(journal(store, "me:secret@out")) == 2
