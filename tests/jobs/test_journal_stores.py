"""Journals of recordings in stores, and journals that are in a store themselves."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.errors import OutputError
from slimwhisper.jobs.journal import logs
from slimwhisper.jobs.journal.journal import JOURNAL_NAME, Journal, Stamp
from slimwhisper.storage.outputs import OutputStore
from tests.support.memory_store import journal, store  # noqa: F401

OPTIONS: dict[str, Any] = {"model": "tiny"}


def stamp(name: str, etag: str | None = None) -> Stamp:
    return Stamp(f"s3://b/{name}", 10, None if etag else 5, etag)


def test_an_etag_is_part_of_the_key(tmp_path: Path) -> None:
    place = tmp_path / JOURNAL_NAME
    one = Journal(place, OPTIONS)
    one.add(stamp("a", "e1"), "done", 1.0)
    one.close()
    assert json.loads(place.read_text())["etag"] == "e1"
    again = Journal(place, OPTIONS)
    assert again.status(stamp("a", "e1")) == "done"
    assert again.status(stamp("a", "e2")) is again.status(stamp("a")) is None
    again.close()


def test_in_a_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(logs, "OBJECT", 1000)
    place = OutputStore("memory://out")
    jobs = [Journal(place, OPTIONS) for _ in range(2)]
    for number in range(40):
        jobs[number % 2].add(stamp(str(number)), "done", 1.0)
        assert jobs[number % 2].status(stamp(str(number))) == "done"
    early = len(journal(store, "out"))
    assert 0 < early < 40  # the last lines wait for others
    for job in jobs:
        job.close()
    found = journal(store, "out")
    assert sorted(int(line["path"].rpartition("/")[2]) for line in found) == list(range(40))
    sizes = [store.size(p) for p in store.find("/out") if p.endswith(".jsonl")]
    assert len(sizes) >= 6 and max(sizes) < 1400
    again = Journal(place, OPTIONS)
    assert all(again.status(stamp(str(n)), before=True) == "done" for n in range(40))
    again.close()
    assert len(journal(store, "out")) == 40


def test_a_store_that_does_not_answer_for_a_while(
    store: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logs, "PERIOD", 0.0)
    one = Journal(OutputStore("memory://me:secret@out"), OPTIONS)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("503")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "slimwhisper"):
        patch.setattr(type(store), "pipe_file", broken)
        one.add(stamp("a"), "done", 1.0)
        with pytest.raises(OutputError, match=r"cannot be written \(503\)"):
            one.close()
    assert "cannot be written (503)" in caplog.text and "secret" not in caplog.text
    one.add(stamp("b"), "done", 1.0)
    one.close()
    assert len(journal(store, "me:secret@out")) == 2
