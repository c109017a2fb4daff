"""What a job reads and writes: recordings of a `JobSource`, outputs of a `JobSink`; and URIs of
both, without their credentials in messages.

Here are those of this machine's folders. `KINDS` names the others, in modules that are imported
when they are used.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, Protocol

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.audio_formats.names import Selection
from slimwhisper.disk import PART, atomic_write
from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.text import error_line, escape_line

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
URI_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
LOCAL = ("", "file", "local")  # protocols of local files
# query parameters that contain a credential: parts of their names, prefixes, and those of Azure's
# shared access signatures (learn.microsoft.com, "Create a service SAS")
SECRET_PARTS = re.compile(r"sig|token|key|secret|pass|cred|auth|policy|expire|access", re.I)
SECRET_STARTS = ("x-amz-", "x-goog-", "x-oss-", "x-ms-")
SAS = frozenset(
    "sv ss srt sr se st sp spr sip si sdd skoid sktid skt ske sks skv saoid suoid scid ses".split()
)

# what is not a local file, and the suffixes of files that name or have recordings -> who reads or
# writes it, as "module:name"
KINDS = {
    "inputs": "slimwhisper.storage.containers:StoredInputs",
    "outputs": "slimwhisper.storage.stores:StoreFolder",
    "parquet": "slimwhisper.storage.tables:TableResults",
    ".parquet": "slimwhisper.storage.containers:Container.table",
    **dict.fromkeys((".jsonl", ".json"), "slimwhisper.storage.containers:Container.manifest"),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz"), "slimwhisper.storage.containers:Container.tar"),
}

# failed: because of the recording, which would fail again; unwritten: because of the output folder;
# unread: because of the store or the folder that has the recording
Status = Literal["done", "failed", "unwritten", "unread"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a recording and its state: it changes when the recording does."""

    path: str  # absolute, or a URI without credentials
    size: int | None  # bytes; None: the file does not exist
    mtime_ns: int | None
    etag: str | None = None  # of an object in a store, instead of `mtime_ns`

    @staticmethod
    def of(path: Path) -> "Fingerprint":
        """The fingerprint of a file as it is now."""
        name = str(absolute(path))
        try:
            stat = path.stat()
        except OSError:
            return Fingerprint(name, None, None)
        return Fingerprint(name, stat.st_size, stat.st_mtime_ns)


def absolute(path: Path) -> Path:
    """The absolute path. Links are not resolved, except before a `..`, whose target they change."""
    if os.pardir not in path.parts:
        return path.absolute()
    folder, name = (path, "") if path.name == os.pardir else (path.parent, path.name)
    return Path(os.path.realpath(folder), name)


class Outcome(NamedTuple):
    """How a recording ended, for the journal."""

    fingerprint: Fingerprint
    status: Status
    seconds: float | None  # of audio
    error: str | None  # why there is no transcript
    output: str  # as that of an `InputFile`
    empty: bool = False  # an output has nothing in it, as of silence


@dataclass(frozen=True, slots=True)
class InputFile:
    """A recording of a job. It can be pickled."""

    path: Path | RemoteFile  # which opens it
    output: str  # path of its outputs in the output folder, without a format's suffix
    fingerprint: Fingerprint

    @property
    def local(self) -> Path | None:
        """The local file that contains it; None: there is none."""
        return self.path if isinstance(self.path, Path) else self.path.local


class JobSource(Protocol):
    """The recordings that the arguments of a job name."""

    selection: Selection  # counts the files that are no recordings
    is_job: bool  # there may be many of them, so that the job keeps a journal
    is_one_file: bool

    def list(self) -> Iterator[InputFile | SlimWhisperError]:
        """Every recording, and an error for each that cannot be found or listed, one by one."""


class JobSink(Protocol):
    """A folder of outputs. Names in it are relative, with `/` between parts.

    A file appears when all of it is written. Any thread may call, and it can be pickled. All
    methods raise OutputError.
    """

    @property
    def local(self) -> Path | None:
        """The folder, if it is one of this machine."""

    def name(self, name: str) -> str:
        """A file's path or URI, without credentials."""

    def check(self) -> None:
        """Check that files can be written."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""

    def read(self, name: str) -> bytes:
        """A file's bytes."""

    def exists(self, name: str, empty: bool = True) -> bool:
        """Whether there is a file of this name. empty: one of no bytes counts, as it always does
        in a store.
        """

    def names(self, folder: str) -> list[str]:
        """The names of the files in one folder, sorted; none if there is no such folder."""


def open_sink(location: str) -> JobSink:
    """The sink at a path or URI. Raises OptionError, DependencyError."""
    if protocol_of(location) not in LOCAL:
        return edge("outputs")(location)
    if location in ("", "-"):
        raise OptionError(f"--output_dir {location!r}: outputs are files; give a folder for them")
    path = Path(location.partition("://")[2]).absolute() if is_uri(location) else Path(location)
    return Folder(path)


def edge(kind: str) -> Any:
    """The class or function of one of `KINDS`."""
    return resolve_name(KINDS[kind])


def container_kind(path: str) -> str | None:
    """The suffix, one of `KINDS`, of a file that names or has recordings; None: it is another."""
    path = path.lower()
    return next((kind for kind in KINDS if kind[0] == "." and path.endswith(kind)), None)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine. A file is written under another name, and renamed."""

    local: Path

    def name(self, name: str) -> str:
        return str(self.local / name)

    def check(self) -> None:
        check_folder(self.local, "--output_dir")

    def write(self, name: str, data: bytes) -> None:
        path = self.local / name
        with self._wrap_errors(name, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(data)

    def read(self, name: str) -> bytes:
        with self._wrap_errors(name, "read"):
            return (self.local / name).read_bytes()

    def exists(self, name: str, empty: bool = True) -> bool:
        with suppress(OSError):  # also without permission
            return (self.local / name).stat().st_size > 0 or empty
        return False

    def names(self, folder: str) -> list[str]:
        with self._wrap_errors(folder, "listed"):
            paths = (self.local / folder).glob("*")
            return sorted(f"{folder}/{path.name}" for path in paths if path.is_file())

    def _wrap_errors(self, name: str, action: str) -> AbstractContextManager[None]:
        return sink_errors(self.name(name), action, "free some space")


def sink_errors(name: str, action: str, remedy: str) -> AbstractContextManager[None]:
    """A context in which errors become OutputErrors."""
    remedy = f"{remedy}, or choose another --output_dir"
    return library_errors(OutputError, f"{name}: cannot be {action}", remedy)


@contextmanager
def library_errors(kind: type[SlimWhisperError], what: str, remedy: str) -> Iterator[None]:
    """Turn any error of a library into one of this kind in one line, without credentials."""
    try:
        yield
    except SlimWhisperError:
        raise
    except Exception as error:  # each library has its own
        raise kind(f"{what} ({reason_of(error)}); {remedy}") from None


def check_folder(folder: Path, flag: str) -> None:
    """Make a folder, and check that files can be written there. Raises OutputError, which names
    the flag that chose it.
    """
    with output_errors(f"{folder}: cannot be written to", flag):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


@contextmanager
def output_errors(what: str, flag: str) -> Iterator[None]:
    """Turn an OSError into an OutputError of one line. flag: what chose the place."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{what} ({error_line(error)}); choose another {flag}") from error


def sweep(folder: Path, before: float) -> None:
    """Remove unfinished files that a killed run left in a folder, if they are older than this
    time. Their recordings will be transcribed again.
    """
    with suppress(OSError):  # the folder does not exist yet, or permission is denied
        for path in folder.glob("*".join(PART)):
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)


def is_uri(text: str) -> bool:
    """Whether a text starts with a protocol, such as `s3://bucket/key`."""
    return URI.match(text) is not None


def protocol_of(location: str) -> str:
    """A URI's protocol; of a path, ""."""
    return location.partition("://")[0].lower() if is_uri(location) else ""


def redact(location: str) -> str:
    """A URI without `user:password@`, and without the parameters that sign it; a path unchanged."""
    if not is_uri(location):
        return location
    protocol, _, remainder = location.partition("://")
    host, slash, path = remainder.partition("/")
    host = host.rpartition("@")[2]
    path, question_mark, query = (host + slash + path).partition("?")
    if question_mark and "=" in query:
        query, hash_sign, fragment = query.partition("#")
        public = [part for part in query.split("&") if not _is_secret(part.partition("=")[0])]
        path += ("?" + "&".join(public) if public else "") + hash_sign + fragment
    else:
        path += question_mark + query
    return f"{protocol}://{path}"


def redact_text(text: str) -> str:
    """A message without the credentials of the URIs in it."""
    return URI_IN_TEXT.sub(lambda match: redact(match[0]), text)


def reason_of(error: BaseException) -> str:
    """An error of a library in one line, without credentials."""
    return escape_line(redact_text(error_line(error))[:200]) or type(error).__name__


def _is_secret(name: str) -> bool:
    low = name.lower()
    return low in SAS or low.startswith(SECRET_STARTS) or SECRET_PARTS.search(low) is not None
