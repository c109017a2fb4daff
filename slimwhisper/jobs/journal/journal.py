"""The journal of a job: one JSON line per finished recording, so that a killed job can resume.

A line is appended once all outputs of the recording are in place. So a recording marked `done` is
complete, and only the last line of a file can be torn. Of a job with many workers, the driver alone
has the journal; `slimwhisper/jobs/journal/logs.py` says where the lines are.
"""

import json
import re
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slimwhisper.jobs.journal.logs import JOURNAL_NAME as JOURNAL_NAME
from slimwhisper.jobs.journal.logs import FileLog, Log, StoreLog
from slimwhisper.storage.digests import Digests as Digests
from slimwhisper.storage.digests import digest_of
from slimwhisper.storage.outputs import OutputStore
from slimwhisper.storage.stamps import Stamp as Stamp

# failed: the recording is at fault and would fail again; unwritten: the output folder is at fault;
# unread: the store that has the recording is
Status = Literal["done", "failed", "unwritten", "unread"]
Finished = tuple[Stamp, Status, float | None, str | None]  # with its seconds, and why it failed

# A line as `Journal` writes it, if no string in its options has braces. The parts are JSON. This is
# several times faster than reading a line as JSON, and writing parts of it again.
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
OUR_LINE = re.compile(
    rb'\{"path": (%(s)b), "size": (null|\d+), "mtime_ns": (null|-?\d+)(?:, "etag": (%(s)b))?, '
    rb'"options": (\{[^{}]*\}), "status": ("done"|"failed"), "seconds": [^,]*, '
    rb'"error": (?:null|%(s)b), "time": "[^"]*"\}\s*\Z' % {b"s": STRING}
)


DAMAGED = (ValueError, RecursionError)  # what a line raises that is no JSON of ours


class Journal:
    """A journal. In a folder of this machine it is locked for one job while it is open.

    Arguments:
        place: the file of a job with outputs in a folder of this machine, or the store that has
            the outputs.
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
        place: Path | OutputStore,
        options: Mapping[str, Any],
        *,
        variants: Sequence[Mapping[str, Any]] = ({},),
        forget: bool = False,
    ) -> None:
        self._options = dict(options)
        self._accepted = [_canonical(self._options | dict(variant)) for variant in variants]
        self.record_variant(variants[0])
        self._log: Log = FileLog(place) if isinstance(place, Path) else StoreLog(place)
        self.path = self._log.path
        try:
            self.earlier = Digests(None if forget else self._read())
        except BaseException:
            self._log.close()
            raise
        self._now = Digests()

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that new lines record."""
        return self._recorded

    def record_variant(self, variant: Mapping[str, Any]) -> None:
        """Record these options in new lines, next to those that all variants share."""
        self._recorded = self._options | dict(variant)

    def _read(self) -> NDArray[np.uint64]:
        """The digests of all lines that mark a file done or failed."""
        digests = array("Q")
        canonical: dict[bytes, bytes] = {}  # options as in a line -> as in a digest
        for line in self._log.lines():
            if (found := OUR_LINE.match(line)) is not None:
                path, size, mtime, etag, options, status = found.groups()
                if options not in canonical:
                    try:
                        again = _canonical(json.loads(options))
                    except DAMAGED:
                        continue
                    canonical[options] = json.dumps(again).encode("ascii")
                key = (path, size, etag or mtime, canonical[options], status)
                digests.append(digest_of(b"[" + b", ".join(key) + b"]"))
            elif (record := _record(line)) is not None:
                with suppress(RecursionError):
                    options = _canonical(record.get("options"))
                    digests.append(_digest(_stamp(record), options, record["status"]))
        return np.frombuffer(digests, np.uint64) if digests else np.zeros(0, np.uint64)

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines that mark a file done or failed, of any options, in their order."""
        return filter(None, map(_record, self._log.lines()))

    def status(self, stamp: Stamp, *, before: bool = False) -> Status | None:
        """Whether a file in this state is done or failed; `before`: in an earlier run."""
        if stamp.size is None:
            return None
        statuses: tuple[Status, ...] = ("done", "failed")
        for status in statuses:
            for options in self._accepted:
                digest = _digest(stamp, options, status)
                if digest in self.earlier or (not before and digest in self._now):
                    return status
        return None

    def add(
        self, stamp: Stamp, status: Status, seconds: float | None, error: str | None = None
    ) -> None:
        """Append a finished recording; in a folder, the line is on disk when this returns."""
        self.add_all([(stamp, status, seconds, error)])

    def add_all(self, finished: Sequence[Finished]) -> None:
        """Append several finished recordings in one write.

        If the process is killed meanwhile, the first lines are whole and one at most is torn.
        """
        if not finished:
            return
        lines = [self._line(*one) for one in finished]
        # ASCII, so that names that are not UTF-8 survive as escaped surrogates
        self._log.append("".join(lines).encode("ascii"))
        options = _canonical(self._recorded)
        for stamp, status, _, _ in finished:
            if status in ("done", "failed"):
                self._now.add(_digest(stamp, options, status))

    def adopt(self, finished: Finished, options: Mapping[str, Any]) -> None:
        """Append what an earlier run has done with these options, but could not mark; nothing
        happens if it is marked.
        """
        stamp, status, _, _ = finished
        digest = _digest(stamp, _canonical(options), status)
        if digest not in self.earlier and digest not in self._now:
            self._log.append(self._line(*finished, options).encode("ascii"))
            self.earlier.add(digest)

    def _line(
        self,
        stamp: Stamp,
        status: Status,
        seconds: float | None,
        error: str | None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        etag = {} if stamp.etag is None else {"etag": stamp.etag}
        record = {
            "path": stamp.path,
            "size": stamp.size,
            "mtime_ns": stamp.mtime_ns,
            **etag,
            "options": self._recorded if options is None else options,
            "status": status,
            "seconds": None if seconds is None else round(seconds, 3),
            "error": error,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        return json.dumps(record) + "\n"

    def close(self) -> None:
        """Write what is left, and release the lock."""
        self._log.close()


def _stamp(record: Mapping[str, Any]) -> Stamp:
    """The stamp of a line."""
    keys = ("size", "mtime_ns", "etag")
    return Stamp(record.get("path", ""), *(record.get(key) for key in keys))


def _record(line: bytes) -> dict[str, Any] | None:
    """A line that marks something done or failed; None: another one, or torn, or damaged."""
    try:
        record = json.loads(line)
    except DAMAGED:
        return None
    marks = isinstance(record, dict) and record.get("status") in ("done", "failed")
    return record if marks else None


def _canonical(options: Any) -> str:
    return json.dumps(options, sort_keys=True)


def _digest(stamp: Stamp, options: str, status: str) -> int:
    version = stamp.mtime_ns if stamp.etag is None else stamp.etag
    key = [stamp.path, stamp.size, version, options, status]
    return digest_of(json.dumps(key).encode("ascii"))
