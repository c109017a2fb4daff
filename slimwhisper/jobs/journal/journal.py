"""The journal of a job: one JSON line per finished recording, so that a killed job can resume.

A line is appended once all outputs of the recording are in place. So a recording marked `done` is
complete, and only the last line of a file can be torn. Of a job with many workers, the driver alone
has the journal; `slimwhisper/jobs/journal/logs.py` says where the lines are.
"""

import json
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slimwhisper.jobs.journal.logs import JOURNAL_NAME as JOURNAL_NAME
from slimwhisper.jobs.journal.logs import FileLog, StoreLog
from slimwhisper.storage.digests import Digests, digest_of
from slimwhisper.storage.outputs import OutputFolder
from slimwhisper.storage.stamps import Finished, Stamp, Status

KEYS = ("path", "size", "mtime_ns", "etag")  # of a recording's stamp; an etag only of objects


class Journal:
    """A journal. In a folder of this machine it is locked for one job while it is open.

    Arguments:
        folder: of the job's outputs.
        options: what a transcript depends on besides its recording. Lines with other options do
            not count.
        variants: more options; a line counts with any one of the variants. New lines record the
            first, or the one given to `record_variant`.
        forget: ignore the lines of earlier runs.
    Raises:
        OutputError: the journal cannot be opened, or another job holds it.
    """

    def __init__(
        self,
        folder: OutputFolder,
        options: Mapping[str, Any],
        *,
        variants: Sequence[Mapping[str, Any]] = ({},),
        forget: bool = False,
    ) -> None:
        self._options = json.loads(json.dumps(options))  # as a line has them
        self._accepted = [self._options | variant for variant in variants]
        self.record_variant(variants[0])
        self._log = FileLog(folder.here(JOURNAL_NAME)) if folder.is_local else StoreLog(folder)
        self.path = self._log.path
        try:
            digests = array("Q", () if forget else self._earlier_lines())
        except BaseException:
            self._log.close()
            raise
        self._earlier = Digests(np.frombuffer(digests, np.uint64) if digests else None)

    def record_variant(self, variant: Mapping[str, Any]) -> None:
        """Record these options in new lines, next to those that all variants share."""
        self.recorded = self._options | variant

    def _earlier_lines(self) -> Iterator[int]:
        for record in self.records():
            if record.get("options") in self._accepted:
                yield _digest(record, record["status"])

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines that mark a recording done or failed, of any options, in their order."""
        for line in self._log.lines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # torn or damaged
                continue
            if isinstance(record, dict) and record.get("status") in ("done", "failed"):
                yield record

    def status(self, stamp: Stamp) -> Status | None:
        """Whether a recording in this state was done, or has failed, in an earlier run."""
        statuses: tuple[Status, ...] = () if stamp.size is None else ("done", "failed")
        known = (s for s in statuses if _digest(_fields(stamp), s) in self._earlier)
        return next(known, None)

    def add(self, *finished: Finished) -> None:
        """Append recordings that have ended, in one write. If the process is killed meanwhile, one
        line at most is torn.
        """
        if finished:
            # ASCII, so that names that are not UTF-8 survive as escaped surrogates
            lines = "".join(_line(one, self.recorded) for one in finished)
            self._log.append(lines.encode("ascii"))

    def adopt(self, finished: Finished, options: Mapping[str, Any]) -> None:
        """Append what an earlier run has done with these options, but could not mark; nothing
        happens if it is marked, or the options are not this job's.
        """
        digest = _digest(_fields(finished.stamp), finished.status)
        if options in self._accepted and self._earlier.add(digest):
            self._log.append(_line(finished, options).encode("ascii"))

    def close(self) -> None:
        """Write what is left, and release the lock."""
        self._log.close()


def _line(finished: Finished, options: Mapping[str, Any]) -> str:
    record = {
        **_fields(finished.stamp),
        "options": options,
        "status": finished.status,
        "seconds": None if finished.seconds is None else round(finished.seconds, 3),
        "error": finished.error,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    return json.dumps(record) + "\n"


def _fields(stamp: Stamp) -> dict[str, Any]:
    fields = {key: getattr(stamp, key) for key in KEYS}
    return fields if stamp.etag is not None else {key: fields[key] for key in KEYS[:3]}


def _digest(record: Mapping[str, Any], status: Status) -> int:
    """Of a line, or of a stamp's fields."""
    return digest_of(repr([*map(record.get, KEYS), status]).encode())
