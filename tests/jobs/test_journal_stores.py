"""Journals of recordings in stores, and journals that are in a store themselves."""

import logging
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.errors import OutputError
from slimwhisper.jobs.journal import logs
from slimwhisper.jobs.journal.journal import Journal
from slimwhisper.storage.outputs import OutputFolder
from slimwhisper.storage.stamps import Finished, Stamp
from tests.support.memory_store import journal, store  # noqa: F401

OPTIONS: dict[str, Any] = {"model": "tiny"}


def done(name: str, etag: str | None = None) -> Finished:
    return Finished(Stamp(f"s3://b/{name}", 10, None if etag else 5, etag), "done", 1.0)


def test_an_etag_is_part_of_the_key(tmp_path: Path) -> None:
    folder = OutputFolder(str(tmp_path))
    one = Journal(folder, OPTIONS)
    one.add(done("a", "e1"))
    one.close()
    again = Journal(folder, OPTIONS)
    assert again.status(done("a", "e1").stamp) == "done"
    assert again.status(done("a", "e2").stamp) is again.status(done("a").stamp) is None
    again.close()


def test_in_a_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Two jobs at once, each with objects of its own; the last lines wait for others."""
    monkeypatch.setattr(logs, "OBJECT", 1000)
    folder = OutputFolder("memory://out")
    jobs = [Journal(folder, OPTIONS) for _ in range(2)]
    for number in range(40):
        jobs[number % 2].add(done(str(number)))
    assert 0 < len(journal(store, "out")) < 40
    for job in jobs:
        job.close()
    found = journal(store, "out")
    assert sorted(int(line["path"].rpartition("/")[2]) for line in found) == list(range(40))
    sizes = [store.size(p) for p in store.find("/out") if p.endswith(".jsonl")]
    assert len(sizes) >= 6 and max(sizes) < 1400
    again = Journal(folder, OPTIONS)
    assert all(again.status(done(str(n)).stamp) == "done" for n in range(40))
    again.close()
    assert len(journal(store, "out")) == 40


def test_a_store_that_does_not_answer_for_a_while(
    store: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logs, "PERIOD", 0.0)
    one = Journal(OutputFolder("memory://me:secret@out"), OPTIONS)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("503")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "slimwhisper"):
        patch.setattr(type(store), "pipe_file", broken)
        one.add(done("a"))
        with pytest.raises(OutputError, match=r"cannot be written \(503\)"):
            one.close()
    assert "cannot be written (503)" in caplog.text and "secret" not in caplog.text
    one.add(done("b"))
    one.close()
    assert len(journal(store, "me:secret@out")) == 2
