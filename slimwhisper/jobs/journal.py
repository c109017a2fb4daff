"""Records one JSON line per finished recording, so that a killed job can resume; and identifies
what a job's outputs depend on, as its lines have it.

A line is appended once all outputs of the recording are in place. So a recording with the status
`done` is complete, and only the last line of a file can be incomplete. In a job with many workers,
only the driver has the journal.

In a folder, a job appends to `slimwhisper-journal.jsonl`, and a part of a job to a file such as
`slimwhisper-journal-1-of-8.jsonl`; all of them are read. Nothing can be appended to an object: in a
store, each job writes a series of objects, `slimwhisper-journal/NAME-000001.jsonl` and so on, and
reads those of all jobs.

A file counts as done only if it was transcribed with the same settings, and nothing else to the
same output since. That has to be decided before a model is loaded, so everything here follows from
the arguments and the files on disk, without torch and without the network:

- A bundled model, a `.pt` file or a Hugging Face folder is identified by its file name and a digest
  of its content, not by its path or the time of its last change.
- One of OpenAI's names is identified by the name. The loader verifies the file's checksum.
- A Hugging Face id is identified by the name. Its revision is unknown until the model is
  downloaded, so new weights under the same id go unnoticed: use `--overwrite True`.
- An adapter: by its folder's name and a digest of its content, or by its id; with none, nothing is
  recorded.
- Options that name files, such as recordings of speakers: the digests of their content, as each
  group of options says (`OptionGroup.identify`).
- Caches: the two requested forms, and the digest of the file that `calibrate` wrote, if there is
  one. The guard may replace a form; its choice depends on the weights, the precision and
  `--guard_audio`, of which the last is not recorded.
"""

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import ELOOP, ENOSPC
from pathlib import Path
from typing import Any

import numpy as np

from slimwhisper.cache.forms import OVERRIDES, PRESETS, choose_forms
from slimwhisper.disk import file_digest, folder_digest, open_locked
from slimwhisper.errors import OutputError
from slimwhisper.files import InputFile, JobSink, Outcome, Status
from slimwhisper.formats.names import BUNDLED, HUB_IDS, bundled_file
from slimwhisper.jobs.inputs import Digests, digest_of
from slimwhisper.option_group import groups_of
from slimwhisper.options import Options
from slimwhisper.types import UNNAMED_DTYPES

JOURNAL_NAME = "slimwhisper-journal.jsonl"
FOLDER = "slimwhisper-journal"  # of objects
PARTS = "slimwhisper-journal-*-of-*.jsonl"
OBJECT = 4 << 20  # bytes after which a series gets another object
SYNC = 0.1  # shortest time between two fsyncs, in seconds
PERIOD = 5.0  # shortest time between two writes to a store, in seconds


logger = logging.getLogger(__name__)


class JournalError(OutputError):
    """Outcomes can no longer be recorded, so the job has to end."""


def file_name(shard: tuple[int, int] | None) -> str:
    """The name of the file of a job, or of a part of one: its number, and that of all parts."""
    return JOURNAL_NAME if shard is None else PARTS.replace("*", "{}").format(*shard)


class FileLog:
    """Lines in a local file. A killed process loses none; a power failure may lose the lines of the
    last tenth of a second, whose recordings are then transcribed again.

    The file is locked for one process until it is closed. One thread appends.
    """

    moved = False  # the folder was not the same during the job

    def __init__(self, path: Path) -> None:
        """Raises OutputError: the file cannot be opened, or another process has locked it."""
        self.path = path
        self._synced_at = float("-inf")
        self._open()

    def _open(self) -> None:
        with self._wrap_errors():
            try:
                self._file = open_locked(self.path)
            except BlockingIOError as error:
                what = "another job is writing to this folder; wait for it to end"
                raise OutputError(f"{self.path}: {what}, or choose another --output_dir") from error
            if size := os.lseek(self._file, 0, os.SEEK_END):
                os.lseek(self._file, size - 1, os.SEEK_SET)
            self._torn = size > 0 and os.read(self._file, 1) != b"\n"

    def lines(self) -> Iterator[bytes]:
        """All lines of all parts, the own ones at the end; some may be incomplete."""
        with self._wrap_errors(), open(self._file, "rb", closefd=False) as own:
            folder = self.path.parent
            for path in (folder / JOURNAL_NAME, *sorted(folder.glob(PARTS))):
                if path != self.path and path.is_file():
                    with path.open("rb") as file:
                        yield from file
            own.seek(0)  # they may be read more than once
            yield from own

    def append(self, lines: bytes) -> None:
        """Add whole lines, in one write. Raises OutputError."""
        data = (b"\n" if self._torn else b"") + lines
        with self._wrap_errors():
            self._torn = os.write(self._file, data) < len(data)
            if self._torn:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            if time.monotonic() >= self._synced_at + SYNC:  # slow on a network drive
                self._sync()
                self._synced_at = time.monotonic()

    def _sync(self) -> None:
        """Store the lines: all of them in a new file, if the folder was deleted or replaced."""
        here = os.fstat(self._file)
        same = False
        with suppress(OSError):
            same = os.path.samestat(self.path.stat(), here)
        if not same:
            self.moved, old = True, self._file
            what = "was deleted or replaced, or its folder was, during the job"
            logger.warning("%s: %s; run it again for outputs that are gone", self.path, what)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            with os.fdopen(old, "rb") as file:
                file.seek(0)
                for line in file:
                    os.write(self._file, line)
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        try:
            with self._wrap_errors():
                self._sync()
        finally:
            os.close(self._file)

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"the journal cannot be written ({error.strerror}); free some space"
            if error.errno == ELOOP:
                what = "the journal must not be a link; remove it"
            raise JournalError(f"{self.path}: {what}, or choose another --output_dir") from error


class StoreLog:
    """Lines in objects. The newest object of a series is replaced with one that has the new lines,
    at most every few seconds. So a kill loses the last lines, and their recordings are transcribed
    again, to the same outputs.
    """

    moved = False

    def __init__(self, sink: JobSink) -> None:
        """The name of the series is unique to this run."""
        self._sink = sink
        self.path = sink.name(f"{FOLDER}/")
        self._series = f"{socket.gethostname()}-{secrets.token_hex(8)}"
        self._number = 0
        self._data = b""  # of the newest object
        self._unsaved = 0  # bytes
        self._saved_at = float("-inf")

    def lines(self) -> Iterator[bytes]:
        """All lines of all jobs, as they were when the log was opened."""
        for name in self._sink.names(FOLDER):
            if name.endswith(".jsonl"):
                yield from self._sink.read(name).splitlines()

    def append(self, lines: bytes) -> None:
        self._data += lines
        self._unsaved += len(lines)
        if len(self._data) >= OBJECT or time.monotonic() >= self._saved_at + PERIOD:
            try:
                self._save()
            except OutputError as error:  # the next line tries again, and then `close`
                self._saved_at = time.monotonic()
                logger.warning("%s", error)

    def close(self) -> None:
        """Write the lines that wait. Raises OutputError."""
        self._save()

    def _save(self) -> None:
        if not self._unsaved:
            return
        self._sink.write(f"{FOLDER}/{self._series}-{self._number:06d}.jsonl", self._data)
        self._unsaved, self._saved_at = 0, time.monotonic()
        if len(self._data) >= OBJECT:
            self._number += 1
            self._data = b""


EMPTY = "empty"  # instead of `done` in a digest
KEYS = ("path", "size", "mtime_ns", "etag")  # of a fingerprint; only objects have an etag
# of a line: digests of its output and of what is asked about it, and whether it wrote the output
LINE = np.dtype([("output", "u8"), ("time", "f8"), ("digest", "u8"), ("wrote", "?")])


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
        self._accepted = [] if ignore_earlier else [self._options | each for each in variants]
        self.record_variant(variants[0])
        local = sink.local
        self.log = StoreLog(sink) if local is None else FileLog(local / file_name(shard))
        try:
            self.read(() if ignore_earlier else self.records())
        except BaseException:
            self.log.close()
            raise

    def record_variant(self, variant: Mapping[str, Any]) -> None:
        """Record these options in new lines, next to those that all variants share."""
        self.recorded = self._options | variant

    def read(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Learn from lines, instead of those read before, what is done and what has failed. One
        that wrote an output cancels all earlier ones of that output, whatever their options.
        """
        lines = np.fromiter(self._lines(records), LINE)
        # that of new lines is later, even if the clock is set back; 2.5e11 is in the year 9892
        self._latest = min(float(lines["time"].max(initial=0)), 2.5e11)
        lines.sort(order=("output", "time"), kind="stable")  # in place: there may be millions
        output, digest = lines["output"].copy(), lines["digest"].copy()
        wrote = np.cumsum(lines["wrote"], dtype=np.uint32)
        del lines
        last = np.searchsorted(output, output, "right") - 1
        self._earlier = Digests(digest[wrote == wrote[last]])

    def _lines(self, records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
        """The fields of `LINE`. A table's rows have no output: their path stands for it."""
        for record in records:
            path, output, when = map(record.get, ("path", "output", "time"))
            mark = EMPTY if record.get("empty") else record["status"]
            accepted, wrote = record["options"] in self._accepted, record["status"] == "done"
            if wrote and not accepted:  # the same settings in other formats change nothing
                same = record["options"] | {"formats": self._options["formats"]}
                wrote = same not in self._accepted
            digest = _digest(*map(record.get, KEYS), output, mark) if accepted else 0
            yield _digest(output or path), when, digest, wrote

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of recordings that are done or failed, with any options but for outputs of
        other formats. Each file's are in their order; `time` is in seconds.
        """
        formats = set(self._options["formats"])
        for line in self.log.lines():
            try:
                record = json.loads(line)
                record["time"] = datetime.fromisoformat(record["time"]).timestamp()
                shared = formats.intersection(record["options"]["formats"])
            except (ValueError, TypeError, KeyError, RecursionError):  # incomplete or damaged
                continue
            if shared and record.get("status") in ("done", "failed"):
                yield record

    def status(self, recording: InputFile) -> Status | None:
        """The status of a recording with this fingerprint and output in an earlier run; None: not
        recorded. What does not exist cannot be done.
        """
        if recording.fingerprint.size is not None and self._has(recording, "done", EMPTY):
            return "done"
        return "failed" if self._has(recording, "failed") else None

    def is_empty(self, recording: InputFile) -> bool:
        """Whether an output of a recording that is done had nothing in it."""
        return self._has(recording, EMPTY)

    def _has(self, recording: InputFile, *marks: str) -> bool:
        fields = [getattr(recording.fingerprint, key) for key in KEYS]
        ends = ((output, mark) for output in (recording.output, None) for mark in marks)
        return any(_digest(*fields, *end) in self._earlier for end in ends)

    def add(self, *outcomes: Outcome) -> None:
        """Append recordings that have ended, in one write. If the process is killed during it, at
        most one line is incomplete.
        """
        # ASCII, so that names that are not UTF-8 survive as escaped surrogates
        lines = "".join(_line(outcome, self.recorded, self._now()) for outcome in outcomes)
        self.log.append(lines.encode("ascii"))

    def _now(self) -> datetime:
        """The time of a line, which is later than those of all before."""
        self._latest = max(time.time(), self._latest + 2e-6)
        return datetime.fromtimestamp(self._latest).astimezone()

    def close(self) -> None:
        """Write lines that are not written yet, and release the lock."""
        self.log.close()


def _line(outcome: Outcome, options: Mapping[str, Any], now: datetime) -> str:
    fingerprint = ((key, getattr(outcome.fingerprint, key)) for key in KEYS)
    record = {
        **{key: value for key, value in fingerprint if key != "etag" or value is not None},
        "options": options,
        "status": outcome.status,
        "seconds": None if outcome.seconds is None else round(outcome.seconds, 3),
        "error": outcome.error,
        "output": outcome.output,
        **({"empty": True} if outcome.empty else {}),
        "time": now.isoformat(),
    }
    return json.dumps(record) + "\n"


def _digest(*values: object) -> int:
    """Bytes that are not UTF-8 count as their escapes, which a table has instead."""
    return digest_of("\0".join(map(str, values)).encode(errors="backslashreplace"))


# of the settings, tokenizer and weights in the folder of a model or an adapter
SUFFIXES = (".json", ".txt", ".safetensors", ".bin")

Precision = dict[str, str]


def identify_job(
    model: str, load: Mapping[str, Any], formats: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that the outputs depend on, except the recording and the precision.

    load: the arguments of `load_model`. options: for reading, for decoding and for subtitles, those
    that differ from their defaults. Raises OptionError, and CacheError for a cache file.
    """
    identity: dict[str, Any] = {}
    for group in groups_of(Options, "identify"):  # instead of the names of files
        identity |= group.identify(options)
    return {
        **identify_model(model),
        **identify_adapter(load["adapter"]),
        "cache": identify_caches(load),
        "formats": formats,
        **options,
        **identity,
    }


def identify_model(name: str) -> dict[str, str]:
    """A model's name and, if it is on disk under that name, the digest of its content."""
    if name in BUNDLED:
        return {"model": name, "digest": file_digest(bundled_file(name))}
    on_disk = _on_disk(name, "config.json")
    return {"model": name} if on_disk is None else {"model": on_disk[0], "digest": on_disk[1]}


def identify_adapter(adapter: str | None) -> dict[str, list[str]]:
    """The adapter, if there is one: a folder's name and digest, or a hub id. In a list, as
    in older journals.
    """
    if not adapter:
        return {}
    return {"adapters": [" ".join(_on_disk(adapter, "adapter_config.json") or (adapter,))]}


def _on_disk(name: str, marker: str) -> tuple[str, str] | None:
    """The name and digest of a file, or of a folder that has the file `marker`. None if `name` is
    neither, or cannot be read, which the loader reports.
    """
    with suppress(OSError, RuntimeError, ValueError):
        path = Path(name).expanduser()
        if name and path.is_file():
            return path.name, file_digest(path)
        if name and (path / marker).is_file():
            return path.absolute().name, folder_digest(path, SUFFIXES)
    return None


def may_have_settings(name: str) -> bool:
    """Whether a model may have settings of its own, which even a flag's default value overrides."""
    try:
        path = Path(name).expanduser()
        return not path.is_file() and (path.is_dir() or "/" in name or name in HUB_IDS)
    except (OSError, RuntimeError, ValueError):
        return False


def identify_caches(load: Mapping[str, Any]) -> str:
    """The cross and self forms, such as "e+x", by preset or by flag; for a file of `calibrate`,
    also its digest. Raises OptionError, and CacheError for such a file.
    """
    cache = load["cache"]
    forms = "+".join(map(str, choose_forms(cache, *map(load.get, OVERRIDES))))
    return forms if cache in PRESETS else f"{forms} {file_digest(Path(cache))}"


def identify_precision(dtype: str, device: str) -> Precision:
    """The precision of a loaded model, as new journal lines record it."""
    return {"dtype": dtype, "device": _device_kind(device)}


def accepted_precisions(dtype: str | None, device: str | None) -> list[Precision]:
    """Every recorded precision that meets the request; None: not specified.

    A dtype given by name is accepted from any device. The default dtype depends on the device, and
    without torch it is unknown whether this machine has a GPU. So for the default, each device's
    own default is accepted: float32 from a CPU, float16 from a GPU. Likewise for "auto", all that
    it may choose.
    """
    chosen = UNNAMED_DTYPES.get(dtype) or dict.fromkeys(("cpu", "gpu"), (str(dtype),))
    if device is not None:
        chosen = dict.fromkeys(chosen, chosen[_device_kind(device)])
    return [{"dtype": name, "device": kind} for kind, names in chosen.items() for name in names]


def _device_kind(device: str) -> str:
    return "cpu" if device.partition(":")[0] == "cpu" else "gpu"
