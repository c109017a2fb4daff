"""Finds the recordings that command-line arguments name, each with the location of its outputs.

No tree is ever in memory as a whole: each folder is listed when the walk reaches it.
"""

import codecs
import glob
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio_formats.names import Selection, is_hidden
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.files import Fingerprint, InputFile, absolute, container_kind, is_uri, redact
from slimwhisper.outputs import FORMATS
from slimwhisper.text import error_line, text_encoding

if TYPE_CHECKING:
    from slimwhisper.jobs.members import HeldFile

OUTSIDE = Path("outside")  # subfolder for the outputs of recordings from outside the base folder
EMPTY = {
    "folder": "no audio or video files in this folder; check the path",
    "glob": "matches no audio or video files; check the pattern",
    "list": "nothing on standard input; pipe in a recording, or a list with one path per line",
}
# what a job writes besides the outputs of recordings
RESULT = re.compile(r"(?:^|[/\\])(?:slimwhisper-journal|transcripts[/\\]part-[^/\\]*\.parquet$)")
ALONE = "URIs, archives, manifests and tables need a job of their own; give them as its arguments"
TAKEN = "another recording's results have the same name; rename it, or give it a job of its own"
ENDS = tuple(f".{name}" for name in FORMATS)
SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))

NAME = "stdin"  # of a recording on standard input, and its outputs
ENOUGH = 64  # bytes that tell audio from text, if there is no whole line
BLOCK = 1 << 16  # bytes that are read at a time, at most

MERGE = 1 << 15  # new digests collected in a set before they join the sorted array
LOOK_AHEAD = 4096  # recordings from which the longest is chosen next

T = TypeVar("T")
Entry = InputFile | SlimWhisperError

logger = logging.getLogger(__name__)


class StandardInput:
    """What is piped in, once: a recording, or a list of paths, by its first bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        """Waits for the first bytes. Raises AudioError."""
        # read1 returns what has arrived, without waiting for a full block
        self._receive = getattr(stream, "read1", stream.read)
        self._head = head = b""
        while len(head) < ENOUGH and (b"\n" not in head or head[:4] == b"RIFF"):
            if not (data := self.read()):
                break
            head += data
        self._encoding = text_encoding(head)
        if self._encoding is None and b"\0\0" not in head:  # a sound has several in a row
            self._encoding = text_encoding(head.replace(b"\0", b"\n"))  # `find -print0`
        self.is_list = self._encoding is not None and not head.startswith(b"#!AMR")
        self._head = head

    def read(self, size: int = BLOCK) -> bytes:
        """The first bytes, or the next ones that have arrived, up to `size`; empty at the end.
        Raises AudioError.
        """
        head, self._head = self._head, b""
        try:
            return head or self._receive(size)
        except OSError as error:
            problem = f"cannot be read ({error_line(error)}); give the file's name"
            raise AudioError(f"{NAME}: {problem}") from error

    def recording(self) -> "HeldFile":
        """The recording, which is copied to the folder TMPDIR. Raises AudioError."""
        from slimwhisper.jobs.members import HeldFile

        return HeldFile(NAME, self, 0, wait=False)

    def paths(self) -> Iterator[str]:
        """The paths of a list, as they arrive: one per line, or NUL-separated."""
        encoding = str(self._encoding)
        decoder = codecs.getincrementaldecoder(encoding)("replace") if "16" in encoding else None
        self._head = self._head.removeprefix(codecs.BOM_UTF8)
        separator = remainder = b""
        while data := self.read():
            remainder += os.fsencode(decoder.decode(data)) if decoder else data
            if not separator:
                separator = b"\0" if b"\0" in remainder else b"\n" if b"\n" in remainder else b""
            if separator:
                *paths, remainder = remainder.split(separator)
                yield from filter(str.strip, map(_path_text, paths))
        if (last := _path_text(remainder)).strip():
            yield last


class Listing:
    """The recordings of one folder, sorted, with the names of their outputs. These depend only on
    what the folder contains, so a resumed job uses the same ones.
    """

    def __init__(
        self, folder: str | Path, files: Iterable[str], folders: Iterable[str], selection: Selection
    ) -> None:
        """selection: counts the files that are no recordings."""
        self._files = sorted(files)
        # "a.mp3" cannot have the output "a.txt" next to a mirrored folder of that name
        self._blocked = {Path(f).stem.casefold() for f in folders if f.lower().endswith(ENDS)}
        takes, join = selection.takes, os.path.join
        self.outputs = self._distinct(n for n in self._files if takes(join(folder, n)))
        self._used = {output.casefold() for output in self.outputs.values()}

    @staticmethod
    def of(folder: Path) -> "Listing":
        """The listing of a folder, empty if the folder cannot be listed: it may still be read."""
        _, folders, files = next(os.walk(folder), ("", [], []))
        return Listing(folder, files, folders, Selection())

    def output_of(self, name: str) -> str:
        """The output name of any file in the folder.

        Files without an audio suffix must avoid the names of the others.
        """
        if name in self.outputs:
            return self.outputs[name]
        output = self._others.get(name, Path(name).stem)
        while output.casefold() in self._used:
            output += "_"
        return output

    @cached_property
    def _others(self) -> dict[str, str]:
        """The output names of all files but those that a job may have written."""
        return self._distinct(n for n in self._files if not n.lower().endswith(ENDS))

    def _distinct(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> output name: without the suffix, or with it where two names would collide."""
        outputs = {name: Path(name).stem for name in names}
        while True:
            counts = Counter(output.casefold() for output in outputs.values())
            taken = self._blocked | {output for output, count in counts.items() if count > 1}
            clashing = [n for n, o in outputs.items() if o != n and o.casefold() in taken]
            if not clashing:
                return outputs
            outputs.update((name, name) for name in clashing)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; outputs mirror the folders below `base`, which is absolute."""

    text: str
    kind: Literal["file", "folder", "glob", "list", "stdin", "missing"]
    base: Path


class Inputs:
    """A job's `JobSource` whose arguments are local.

    An argument is a file, a folder, a glob, or `-` for a recording or a list on standard input.
    """

    def __init__(self, arguments: Iterable[str], stdin: StandardInput | None = None) -> None:
        """stdin: for the argument `-`. Raises OptionError."""
        self._stdin = stdin
        self.selection = Selection()
        # the last folders listed for files in them
        self._listing = lru_cache(16)(Listing.of)
        self._walked: set[Path] = set()  # absolute folders of a glob or list
        self._arguments = [_classify(text, stdin) for text in dict.fromkeys(arguments)]
        kinds = [a.kind for a in self._arguments]
        self.is_job = bool({"folder", "glob", "list"} & set(kinds))
        self.is_list = "list" in kinds  # they may arrive slowly
        self.is_one_file = kinds in (["file"], ["stdin"])
        self._base = self._common_base()

    def list(self) -> Iterator[Entry]:
        for argument in self._arguments:
            is_empty = True
            self._walked.clear()
            for entry in self._expand(argument):
                is_empty = False
                yield entry
            if is_empty and argument.kind in EMPTY:
                yield AudioError(f"{argument.text}: {EMPTY[argument.kind]}")

    def _expand(self, argument: Argument) -> Iterator[InputFile | AudioError]:
        match argument.kind:
            case "missing":
                yield AudioError(f"{argument.text}: no such file; check the path")
            case "file":
                path = Path(argument.text)
                if path.is_fifo() and not argument.text.startswith("/dev/"):  # as of `<(command)`
                    logger.warning("%s: a pipe; it is read once a program writes to it", path)
                yield self._file(path)
            case "stdin":
                assert self._stdin is not None
                recording, output = self._stdin.recording(), self._file(Path(NAME)).output
                yield InputFile(recording, output, Fingerprint(NAME, None, time.time_ns()))
            case "folder":
                yield from self._walk(Path(argument.text))
            case "glob":
                # "*.dat" means all such files; "talks/*" means the recordings among the files
                suffix = Path(argument.text).suffix
                every = bool(suffix) and not glob.has_magic(suffix)
                named = set(Path(argument.text).parts)
                dots = any(part.startswith(".") for part in named - {os.pardir})
                for text in _matches(argument.text):
                    path = Path(text)
                    if not dots and any(map(is_hidden, set(path.parts) - named)):
                        continue
                    whole = every or kind_of(path) == "folder"
                    if whole or self.selection.takes(text, hidden=dots):
                        yield from self._one_of_many(path)
            case "list":
                assert self._stdin is not None
                for text in self._stdin.paths():
                    yield from self._of_list(text)

    def _of_list(self, text: str) -> Iterator[InputFile | AudioError]:
        """The recordings of one line of a list."""
        path = Path(text)
        is_new = kind_of(path) == "folder" and not self._is_walked(path)
        if _needs_own_job(text):
            yield AudioError(f"{redact(text)}: {ALONE}")
        elif is_new and not text.endswith(SEPARATORS):
            remedy = f"write {path}{os.sep} to read all below it, or list only files (find -type f)"
            yield AudioError(f"{path}: is a folder; {remedy}")
        elif is_new and path.resolve() == Path(path.resolve().anchor):
            yield AudioError(f"{path}: has all files of this machine; name a folder in it")
        else:
            yield from self._one_of_many(path)

    def _one_of_many(self, path: Path) -> Iterator[InputFile | AudioError]:
        """The recordings of one path from a list or glob."""
        if self._is_walked(path):
            return
        match kind_of(path):
            case "folder":
                self._walked.add(absolute(path))
                yield from self._walk(path)
            case "file":
                yield self._file(path)
            case "special":  # reading a pipe would block until a process writes to it
                yield AudioError(f"{path}: not a regular file; drop it from the list")
            case _:
                yield AudioError(f"{path}: no such file; check the list")

    def _is_walked(self, path: Path) -> bool:
        """Whether a folder already walked contains the path.

        `find` and `**` name a folder first and its files later, which would be a repetition.
        """
        place = absolute(path)
        return not self._walked.isdisjoint([place, *place.parents])

    def _walk(self, top: Path) -> Iterator[InputFile | AudioError]:
        """All recordings below a folder, but for hidden ones and trash; does not follow links to
        folders.
        """
        errors: list[AudioError] = []

        def add(error: OSError) -> None:
            what = f"cannot be listed ({error.strerror}); check its permissions"
            errors.append(AudioError(f"{error.filename}: {what}"))

        for folder, folders, files in os.walk(top, onerror=add):
            while errors:
                yield errors.pop()
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            output_folder = self._output_folder(absolute(Path(folder)))
            for name, output in Listing(folder, files, folders, self.selection).outputs.items():
                path = Path(folder, name)
                if kind_of(path) != "special":  # a broken link is reported when it is opened
                    yield InputFile(path, str(output_folder / output), Fingerprint.of(path))
        yield from errors

    def _file(self, path: Path) -> InputFile:
        place = absolute(path)
        name = self._listing(place.parent).output_of(place.name)
        output = str(self._output_folder(place.parent) / name)
        return InputFile(path, output, Fingerprint.of(path))

    def _output_folder(self, folder: Path) -> Path:
        """The folder, relative to the output folder, for outputs of recordings in this folder."""
        if self._base is None:
            return Path()
        if folder.is_relative_to(self._base):
            relative = folder.relative_to(self._base)
            # a folder that is itself called "outside" would collide with the subfolder
            if not (self.is_list and relative.parts[:1] == OUTSIDE.parts):
                return relative
        return OUTSIDE / folder.relative_to(folder.anchor)

    def _common_base(self) -> Path | None:
        """The folder whose structure the outputs mirror.

        None for plain files with distinct names: their outputs go into the output folder itself.
        """
        existing = [a for a in self._arguments if a.kind != "missing"]
        if all(a.kind in ("file", "stdin") for a in existing):
            paths = [absolute(Path(a.text)) for a in existing]
            names = {self._listing(p.parent).output_of(p.name).casefold() for p in paths}
            if len(names) == len(paths):
                return None
        return Path(os.path.commonpath([a.base for a in existing]))


def are_stored(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `transcribe` are URIs, manifests, tables or archives.

    Raises OptionError if only some are.
    """
    stored = all(is_uri(a) or container_kind(a) for a in arguments)
    if not stored and (name := next(filter(_needs_own_job, arguments), None)) is not None:
        raise OptionError(f"{redact(name)}: {ALONE}")
    return stored


def _needs_own_job(text: str) -> bool:
    """Whether it is a URI, an archive, a manifest or a table; those that a job wrote are not."""
    named = container_kind(text) not in (None, ".json") and kind_of(Path(text)) != "folder"
    return is_uri(text) or (named and not RESULT.search(text))


def _matches(pattern: str) -> Iterator[str]:
    """The paths that match as in the shell, lazily; `**` does not follow links to folders."""
    top, *rest = re.split(r"(?<![^/\\])\*\*(?:[/\\]+|$)", pattern, maxsplit=1)
    for start in glob.iglob(top or os.curdir):  # noqa: PTH207  (Path.glob includes hidden files)
        if not rest:
            yield start
        for folder, folders, _ in os.walk(start) if rest else ():
            folders[:] = [name for name in folders if not is_hidden(name)]
            yield from _matches(os.path.join(glob.escape(folder), *rest))  # noqa: PTH118


def distinct(entries: Iterable[Entry], is_table: bool = False) -> Iterator[Entry]:
    """Each recording once. Two paths to one folder count once; a link to a file is another file.
    An error for a recording whose results would replace those of another: as of `a//b` and `a/b`
    in a store, or of addresses that differ only in what is secret.
    """
    seen, places, folder_of = Digests(), Digests(), lru_cache(64)(os.path.realpath)
    for entry in entries:
        if isinstance(entry, InputFile):
            path, name = entry.path, entry.fingerprint.path
            place = name if is_table else entry.output
            if isinstance(path, Path):
                name = os.path.join(folder_of(path.parent), path.name)  # noqa: PTH118  (for speed)
            elif path.local is None:  # with what is secret in its address
                name += getattr(path, "path", "")
            if seen.add(digest_of(name)):
                yield entry if places.add(digest_of(place)) else AudioError(f"{path}: {TAKEN}")
        else:
            yield entry


def in_shard(entries: Iterable[Entry], number: int, count: int) -> Iterator[Entry]:
    """The recordings of one of `count` parts, the first of which is 1, and all errors. A recording
    stays in its part when others come or go, and on hosts that have the inputs elsewhere.
    """
    for entry in entries:
        if not isinstance(entry, InputFile) or digest_of(entry.output) % count == number - 1:
            yield entry


def longest_first(items: Iterable[tuple[float | None, T]], ahead: int = LOOK_AHEAD) -> Iterator[T]:
    """(seconds or None, item) -> items, each the longest of the next `ahead`.

    Items without a length follow those with one, in their order.
    """
    heap: list[tuple[float, int, T]] = []
    numbers = count()
    for seconds, item in items:
        heappush(heap, (-(seconds or 0.0), next(numbers), item))
        if len(heap) > ahead:
            yield heappop(heap)[2]
    while heap:
        yield heappop(heap)[2]


def kind_of(path: Path) -> Literal["file", "folder", "special"] | None:
    try:
        mode = path.stat().st_mode
        return "folder" if S_ISDIR(mode) else "file" if S_ISREG(mode) else "special"
    except (OSError, ValueError):  # ValueError: the text cannot be a path
        return None


def _classify(text: str, stdin: StandardInput | None) -> Argument:
    if text == "-":
        is_list = stdin is None or stdin.is_list
        return Argument(text if is_list else NAME, "list" if is_list else "stdin", Path.cwd())
    if not text:  # which stands for the current folder in a path
        raise OptionError("a recording's name is empty; leave it out, or write . for this folder")
    path = Path(text)
    match kind_of(path):
        case "folder":
            return Argument(text, "folder", absolute(path))
        case "file" | "special":
            return Argument(text, "file", absolute(path).parent)
    if not glob.has_magic(text):
        return Argument(text, "missing", Path())
    while glob.has_magic(str(path)) and kind_of(path) != "folder":
        path = path.parent
    if glob.has_magic(str(path)):  # a folder that exists is itself
        text = f"{glob.escape(str(path))}/{Path(text).relative_to(path)}"
    return Argument(text, "glob", absolute(path))


def _path_text(path: bytes) -> str:
    return os.fsdecode(path.removesuffix(b"\r"))


def digest_of(key: str | bytes) -> int:
    """64 bits: two of a million keys collide by chance once in 10^7 jobs."""
    return int.from_bytes(blake2b(os.fsencode(key), digest_size=8).digest(), "little")


class Digests:
    """A set of 64-bit numbers, 8 bytes each: 8 MB for a million files."""

    def __init__(self, digests: NDArray[np.uint64] | None = None) -> None:
        self._sorted = np.sort(np.zeros(0, np.uint64) if digests is None else digests)
        self._new: set[int] = set()

    def __contains__(self, digest: int) -> bool:
        if digest in self._new:
            return True
        index = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return index < len(self._sorted) and int(self._sorted[index]) == digest

    def add(self, digest: int) -> bool:
        """Add a number; returns whether it is new."""
        if digest in self:
            return False
        self._new.add(digest)
        if len(self._new) >= MERGE:
            # Replace the array before emptying the set: another thread may be searching. Not by
            # np.union1d, whose table of hashes takes ten times the memory of the array.
            new = np.sort(np.fromiter(self._new, np.uint64, len(self._new)))
            # merges two sorted runs
            self._sorted = np.sort(np.concatenate((self._sorted, new)), kind="stable")
            self._new = set()
        return True
