"""Finds the recordings that command-line arguments name, each with the location of its outputs.

No tree is ever in memory as a whole: each folder is listed when the walk reaches it.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, Literal

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.storage.digest_set import Digests, digest_of
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.fingerprints import Fingerprint

OUTSIDE = Path("outside")  # subfolder for the outputs of recordings from outside the base folder
EMPTY = {
    "folder": "no audio or video files in this folder; check the path",
    "glob": "matches no audio or video files; check the pattern",
    "list": "no paths on standard input; pipe a list in, with one path per line",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; outputs mirror the folders below `base`, which is absolute."""

    text: str
    kind: Literal["file", "folder", "glob", "list", "missing"]
    base: Path


class Inputs:
    """The recordings that the arguments name.

    An argument is a file, a folder, a glob, or `-` for a list on standard input.
    """

    def __init__(
        self,
        arguments: Iterable[str],
        stdin: BinaryIO | None = None,
        endings: Sequence[str] = ("",),
    ) -> None:
        """endings: a recording's outputs have its output name with each of them."""
        self._stdin, self._endings = stdin, endings
        # the last folder listed for a file in it
        self._listing = lru_cache(1)(partial(Listing.of, endings=endings))
        self._walked: set[Path] = set()  # absolute folders of a glob or list
        self._arguments = [_classify(text) for text in dict.fromkeys(arguments)]
        kinds = [a.kind for a in self._arguments]
        self.is_job = bool({"folder", "glob", "list"} & set(kinds))
        self.is_list = "list" in kinds  # standard input can be read only once
        self.is_one_file = kinds == ["file"]
        self._base = self._common_base()

    def files(self) -> Iterator[InputFile | AudioError]:
        """Every recording, and an error for each path that cannot be found or listed."""
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
                yield self._file(Path(argument.text))
            case "folder":
                yield from self._walk(Path(argument.text))
            case "glob":
                # "*.dat" means all such files; "talks/*" means the recordings among the files
                suffix = Path(argument.text).suffix
                any_file = bool(suffix) and not glob.has_magic(suffix)
                # matches as the shell does, lazily; Path.glob includes hidden files
                for text in glob.iglob(argument.text, recursive=True):  # noqa: PTH207
                    path = Path(text)
                    if any_file or is_audio(text) or _kind(path) == "folder":
                        yield from self._one_of_many(path)
            case "list":
                assert self._stdin is not None
                for text in read_list(self._stdin):
                    yield from self._one_of_many(Path(text))

    def _one_of_many(self, path: Path) -> Iterator[InputFile | AudioError]:
        """The recordings of one path from a list or glob."""
        if self._is_walked(path):
            return
        match _kind(path):
            case "folder":
                self._walked.add(_absolute(path))
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
        absolute = _absolute(path)
        return not self._walked.isdisjoint([absolute, *absolute.parents])

    def _walk(self, top: Path) -> Iterator[InputFile | AudioError]:
        """All recordings below a folder; does not follow links to folders."""
        unlisted: list[OSError] = []

        def errors() -> Iterator[AudioError]:
            while unlisted:
                error = unlisted.pop()
                yield AudioError(
                    f"{error.filename}: cannot be listed ({error.strerror}); check its permissions"
                )

        for folder, folders, files in os.walk(top, onerror=unlisted.append):
            yield from errors()
            folders.sort()
            output_folder = self._output_folder(_absolute(Path(folder)))
            for name, output in Listing(files, folders, self._endings).outputs.items():
                path = Path(folder, name)
                if _kind(path) != "special":  # a broken link is reported when it is opened
                    yield InputFile(path, str(output_folder / output), Fingerprint.of(path))
        yield from errors()

    def _file(self, path: Path) -> InputFile:
        absolute = _absolute(path)
        name = self._listing(absolute.parent).output_of(absolute.name)
        output = str(self._output_folder(absolute.parent) / name)
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
        if all(a.kind == "file" for a in existing):
            paths = [_absolute(Path(a.text)) for a in existing]
            outputs = [self._listing(p.parent).output_of(p.name) for p in paths]
            names = [(output + end).casefold() for output in outputs for end in self._endings]
            if len(set(names)) == len(names):
                return None
        return Path(os.path.commonpath([a.base for a in existing]))


def distinct(
    entries: Iterable[InputFile | SlimWhisperError],
) -> Iterator[InputFile | SlimWhisperError]:
    """Each recording once. Two paths to one folder count once; a link to a file is another file."""
    seen, folder_of = Digests(), lru_cache(64)(os.path.realpath)
    for entry in entries:
        if isinstance(entry, InputFile):
            path, name = entry.path, entry.fingerprint.path
            if isinstance(path, Path):
                name = os.path.join(folder_of(path.parent), path.name)  # noqa: PTH118  (for speed)
            if not seen.add(digest_of(os.fsencode(name))):
                continue
        yield entry


def read_list(stream: BinaryIO) -> Iterator[str]:
    """The paths of a list, as they arrive: one per line, or NUL-separated (`find -print0`)."""
    # read1 returns what has arrived, without waiting for a full block
    read = getattr(stream, "read1", stream.read)
    separator = remainder = b""
    while chunk := read(1 << 16):
        remainder += chunk
        if not separator:
            separator = b"\0" if b"\0" in remainder else b"\n" if b"\n" in remainder else b""
        if separator:
            *paths, remainder = remainder.split(separator)
            yield from filter(None, map(_path_text, paths))
    if last := _path_text(remainder):
        yield last


def _path_text(path: bytes) -> str:
    return os.fsdecode(path.removesuffix(b"\r"))


def _kind(path: Path) -> Literal["file", "folder", "special"] | None:
    try:
        mode = path.stat().st_mode
        return "folder" if S_ISDIR(mode) else "file" if S_ISREG(mode) else "special"
    except (OSError, ValueError):  # ValueError: the text cannot be a path
        return None


def _classify(text: str) -> Argument:
    if text == "-":
        return Argument(text, "list", Path.cwd())
    path = Path(text)
    match _kind(path):
        case "folder":
            return Argument(text, "folder", _absolute(path))
        case "file" | "special":
            return Argument(text, "file", _absolute(path).parent)
    if not glob.has_magic(text):
        return Argument(text, "missing", Path())
    while glob.has_magic(str(path)):
        path = path.parent
    return Argument(text, "glob", _absolute(path))


def _absolute(path: Path) -> Path:
    """The absolute path. Links are not resolved, except before a `..`, whose target they change."""
    if path.name == os.pardir:
        return path.resolve()
    if os.pardir in path.parts:
        return path.parent.resolve() / path.name
    return path.absolute()


class Listing:
    """The recordings of one folder, sorted, with the names of their outputs. These depend only on
    what the folder contains, so a resumed job uses the same ones.
    """

    def __init__(
        self, files: Iterable[str], folders: Iterable[str], endings: Sequence[str] = ("",)
    ) -> None:
        """endings: as of `Inputs`."""
        self._files, self._endings = sorted(files), endings
        # "a.mp3" cannot have the output "a.txt" next to a mirrored folder of that name
        ends = tuple(f".{name}" for name in FORMATS)
        self._blocked = {Path(f).stem.casefold() for f in folders if f.lower().endswith(ends)}
        self.outputs = self._distinct(name for name in self._files if is_audio(name))

    @staticmethod
    def of(folder: Path, endings: Sequence[str] = ("",)) -> "Listing":
        """The listing of a folder, empty if the folder cannot be listed: it may still be read."""
        _, folders, files = next(os.walk(folder), ("", [], []))
        return Listing(files, folders, endings)

    def output_of(self, name: str) -> str:
        """The output name of any file in the folder.

        Files without an audio suffix must avoid the names of the others.
        """
        if name in self.outputs:
            return self.outputs[name]
        output = self._distinct({name: None, **dict.fromkeys(self._files)})[name]
        used = {each for o in self.outputs.values() for each in self._names(o)}
        while not used.isdisjoint(self._names(output)):
            output += "_"
        return output

    def _names(self, output: str) -> list[str]:
        """The names that an output name stands for, in small letters."""
        return [(output + ending).casefold() for ending in self._endings]

    def _distinct(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> output name: without the suffix, or with it where two names would collide."""
        outputs = {name: Path(name).stem for name in names}
        while True:
            counts = Counter(each for output in outputs.values() for each in self._names(output))
            taken = self._blocked | {output for output, count in counts.items() if count > 1}
            clashing = [
                n for n, o in outputs.items() if o != n and not taken.isdisjoint(self._names(o))
            ]
            if not clashing:
                return outputs
            outputs.update((name, name) for name in clashing)


def is_audio(name: str) -> bool:
    """Whether a name has the suffix of an audio or video file."""
    return os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES  # noqa: PTH122  (faster than Path, for millions of files)
