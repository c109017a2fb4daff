"""Records one JSON line per finished recording, so that a killed job can resume.

A line is appended once all outputs of the recording are in place. So a recording with the status
`done` is complete, and only the last line of a file can be incomplete. In a job with many workers,
only the driver has the journal. `slimwhisper/jobs/journal/logs.py` stores the lines.
"""

import json
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slimwhisper.files import Fingerprint, JobSink, Outcome, Status
from slimwhisper.jobs.inputs import Digests, digest_of
from slimwhisper.jobs.journal.logs import JOURNAL_NAME as JOURNAL_NAME
from slimwhisper.jobs.journal.logs import FileLog, StoreLog, file_name

EMPTY = "empty"  # marks a recording beside its status
KEYS = ("path", "size", "mtime_ns", "etag")  # of a fingerprint; only objects have an etag


class Journal:
    """A job's journal. In a local folder, it is locked while it is open.

    Arguments:
        sink: of the job's outputs.
        options: everything that a transcript depends on, except its recording. Lines with other
            options are ignored.
        variants: more options; a line with any of the variants is accepted. New lines record the
            first, or the one given to `record_variant`.
        ignore_earlier: ignore the lines of earlier runs.
        shard: the number of the part of a job that this one does, and of all parts. In a folder,
            each part writes a file of its own, and reads those of all parts.
    Raises:
        OutputError: the journal cannot be opened, or another job has locked it.
    """

    def __init__(
        self,
        sink: JobSink,
        options: Mapping[str, Any],
        *,
        variants: Sequence[Mapping[str, Any]] = ({},),
        ignore_earlier: bool = False,
        shard: tuple[int, int] | None = None,
    ) -> None:
        self._options = json.loads(json.dumps(options))  # as a line has them
        self._accepted = [self._options | variant for variant in variants]
        self.record_variant(variants[0])
        local = sink.local
        self.log = StoreLog(sink) if local is None else FileLog(local / file_name(shard))
        try:
            digests = array("Q", () if ignore_earlier else self._earlier_lines())
        except BaseException:
            self.log.close()
            raise
        self._earlier_digests = Digests(np.frombuffer(digests, np.uint64) if digests else None)

    def record_variant(self, variant: Mapping[str, Any]) -> None:
        """Record these options in new lines, next to those that all variants share."""
        self.recorded = self._options | variant

    def _earlier_lines(self) -> Iterator[int]:
        for record in self.records():
            if record.get("options") in self._accepted:
                yield _digest(record, record["status"])
                if record.get("empty"):
                    yield _digest(record, EMPTY)

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of recordings that are done or failed, with any options, in their order."""
        for line in self.log.lines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # incomplete or damaged
                continue
            if isinstance(record, dict) and record.get("status") in ("done", "failed"):
                yield record

    def status(self, fingerprint: Fingerprint) -> Status | None:
        """The status of a recording with this fingerprint in an earlier run; None: not recorded.
        What does not exist cannot be done.
        """
        statuses: tuple[Status, ...] = (
            ("failed",) if fingerprint.size is None else ("done", "failed")
        )
        matches = (s for s in statuses if _digest(_fields(fingerprint), s) in self._earlier_digests)
        return next(matches, None)

    def is_empty(self, fingerprint: Fingerprint) -> bool:
        """Whether an output of a recording that is done had nothing in it."""
        return _digest(_fields(fingerprint), EMPTY) in self._earlier_digests

    def add(self, *outcomes: Outcome) -> None:
        """Append recordings that have ended, in one write. If the process is killed during it, at
        most one line is incomplete.
        """
        if outcomes:
            # ASCII, so that names that are not UTF-8 survive as escaped surrogates
            lines = "".join(_line(outcome, self.recorded) for outcome in outcomes)
            self.log.append(lines.encode("ascii"))

    def import_record(self, outcome: Outcome, options: Mapping[str, Any]) -> None:
        """Append an outcome that an earlier run, with these options, did not record. Does nothing
        if it is recorded, or if the options are not this job's.
        """
        digest = _digest(_fields(outcome.fingerprint), outcome.status)
        if options in self._accepted and self._earlier_digests.add(digest):
            self.log.append(_line(outcome, options).encode("ascii"))

    def close(self) -> None:
        """Write lines that are not written yet, and release the lock."""
        self.log.close()


def _line(outcome: Outcome, options: Mapping[str, Any]) -> str:
    record = {
        **_fields(outcome.fingerprint),
        "options": options,
        "status": outcome.status,
        "seconds": None if outcome.seconds is None else round(outcome.seconds, 3),
        "error": outcome.error,
        **({"empty": True} if outcome.empty else {}),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    return json.dumps(record) + "\n"


def _fields(fingerprint: Fingerprint) -> dict[str, Any]:
    fields = {key: getattr(fingerprint, key) for key in KEYS}
    return fields if fingerprint.etag is not None else {key: fields[key] for key in KEYS[:3]}


def _digest(record: Mapping[str, Any], status: str) -> int:
    """The digest of a line, or of a fingerprint's fields, with a status."""
    return digest_of(repr([*map(record.get, KEYS), status]).encode())
