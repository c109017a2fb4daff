"""Arguments -> recordings, one after another, each with the place of its outputs.

Nothing here holds a whole tree: a folder is listed when it is reached, and forgotten after it.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import BinaryIO, Literal

from slimwhisper.errors import AudioError
from slimwhisper.jobs.listing import Listing, is_audio, list_folder

OUTSIDE = "outside"  # holds the outputs of listed recordings from elsewhere
NOTHING = {
    "folder": "no audio or video files in this folder; check the path",
    "glob": "matches no audio or video files; check the pattern",
    "list": "no paths on standard input; pipe a list into it, one path a line",
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file, and where its outputs go: `output` lacks the format's suffix."""

    path: Path
    output: Path


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, and the absolute folder that its outputs' places are counted from."""

    text: str
    kind: Literal["file", "folder", "glob", "list", "missing"]
    base: Path


class Inputs:
    """What the arguments stand for: files, folders, globs, and `-`, a list on standard input."""

    def __init__(
        self, arguments: Iterable[str], output_dir: Path, stdin: BinaryIO | None = None
    ) -> None:
        self._output_dir = output_dir
        self._stdin = stdin
        self._listed: tuple[Path, Listing] | None = None  # the last folder that a file was in
        self._walked: set[Path] = set()  # absolute folders of a glob, or the last one of a list
        self._arguments = _without_repeats([_classify(a) for a in arguments])
        kinds = [a.kind for a in self._arguments]
        self.is_job = bool({"folder", "glob", "list"} & set(kinds))
        self.is_list = "list" in kinds  # it can be read only once
        self.is_one_file = kinds == ["file"]
        self._base = self._common_base()

    def files(self) -> Iterator[InputFile | AudioError]:
        """Every recording, and an error for each path that cannot be found or listed."""
        for argument in self._arguments:
            nothing = True
            for found in self._expand(argument):
                nothing = False
                yield found
            if nothing and argument.kind in NOTHING:
                yield AudioError(f"{argument.text}: {NOTHING[argument.kind]}")

    def _expand(self, argument: Argument) -> Iterator[InputFile | AudioError]:
        match argument.kind:
            case "missing":
                yield AudioError(f"{argument.text}: no such file; check the path")
            case "file":
                yield self._file(Path(argument.text))
            case "folder":
                yield from self._walk(Path(argument.text))
            case "glob":
                # "*.dat" asks for these files; "talks/*" for the recordings among them
                suffix = Path(argument.text).suffix
                any_file = bool(suffix) and not glob.has_magic(suffix)
                # as the shell does it, and lazily: Path.glob takes hidden files too
                for text in glob.iglob(argument.text, recursive=True):  # noqa: PTH207
                    path = Path(text)
                    if any_file or is_audio(text) or _kind(path) == "folder":
                        yield from self._one_of_many(path)
                self._walked.clear()
            case "list":
                assert self._stdin is not None
                for text in read_list(self._stdin):
                    path = Path(text)
                    if _kind(path) == "folder" and not self._is_walked(path):
                        self._walked.clear()  # a list may be long, and `find` goes in order
                    yield from self._one_of_many(path)

    def _one_of_many(self, path: Path) -> Iterator[InputFile | AudioError]:
        """One path of a list or glob."""
        if self._is_walked(path):
            return
        match _kind(path):
            case "folder":
                self._walked.add(_absolute(path))
                yield from self._walk(path)
            case "file":
                yield self._file(path)
            case _:
                yield AudioError(f"{path}: no such file; check the list")

    def _is_walked(self, path: Path) -> bool:
        """`find` and `**` name a folder, which is walked, before what is in it."""
        absolute = _absolute(path)
        return absolute in self._walked or any(p in self._walked for p in absolute.parents)

    def _walk(self, top: Path) -> Iterator[InputFile | AudioError]:
        """All recordings below a folder; links to folders are not followed."""
        pending: list[Iterator[Path]] = [iter([top])]  # folders yet to visit, level by level
        while pending:
            folder = next(pending[-1], None)
            if folder is None:
                pending.pop()
                continue
            try:
                listing = list_folder(folder)
            except OSError as error:
                reason = error.strerror
                yield AudioError(f"{folder}: cannot be listed ({reason}); check its permissions")
                continue
            pending.append(map(folder.__truediv__, listing.folders))
            place = self._place(_absolute(folder))
            for name, output in listing.outputs.items():
                yield InputFile(folder / name, place / output)

    def _file(self, path: Path) -> InputFile:
        absolute = _absolute(path)
        return InputFile(path, self._place(absolute.parent) / self._output_name(absolute))

    def _output_name(self, path: Path) -> str:
        if self._listed is None or self._listed[0] != path.parent:
            try:
                listing = list_folder(path.parent)
            except OSError:  # a folder may be closed to listing, and its files open to reading
                listing = Listing()
            self._listed = (path.parent, listing)
        return self._listed[1].output_of(path.name)

    def _place(self, folder: Path) -> Path:
        """Where the outputs of an absolute folder's recordings go."""
        if self._base is None:
            return self._output_dir
        if folder.is_relative_to(self._base):
            relative = folder.relative_to(self._base)
            # a folder that is itself called "outside" would mix with the others from there
            if not (self.is_list and relative.parts[:1] == (OUTSIDE,)):
                return self._output_dir / relative
        return self._output_dir / OUTSIDE / folder.relative_to(folder.anchor)

    def _common_base(self) -> Path | None:
        """The folder that all outputs mirror; None: plain files, each with its own folder."""
        known = [a for a in self._arguments if a.kind != "missing"]
        if all(a.kind == "file" for a in known):
            names = [self._output_name(_absolute(Path(a.text))).casefold() for a in known]
            if len(set(names)) == len(names):
                return None
        return Path(os.path.commonpath([a.base for a in known]))


def read_list(stream: BinaryIO) -> Iterator[str]:
    """The paths of a list, as they arrive: one a line, or with NULs between (`find -print0`)."""
    read = getattr(stream, "read1", stream.read)  # does not wait until so much has arrived
    separator = rest = b""
    while chunk := read(1 << 16):
        rest += chunk
        if not separator:
            separator = b"\0" if b"\0" in rest else b"\n" if b"\n" in rest else b""
        if separator:
            *paths, rest = rest.split(separator)
            yield from filter(None, map(_path_text, paths))
    if last := _path_text(rest):
        yield last


def _path_text(path: bytes) -> str:
    return os.fsdecode(path.removesuffix(b"\r"))


def _kind(path: Path) -> Literal["file", "folder"] | None:
    try:
        return "folder" if S_ISDIR(path.stat().st_mode) else "file"
    except (OSError, ValueError):  # the latter for what cannot be a path
        return None


def _classify(text: str) -> Argument:
    if text == "-":
        return Argument(text, "list", Path.cwd())
    path = Path(text)
    match _kind(path):
        case "folder":
            return Argument(text, "folder", _absolute(path))
        case "file":
            return Argument(text, "file", _absolute(path).parent)
    if not glob.has_magic(text):
        return Argument(text, "missing", Path())
    while glob.has_magic(str(path)):
        path = path.parent
    return Argument(text, "glob", _absolute(path))


def _without_repeats(arguments: Sequence[Argument]) -> list[Argument]:
    """Leave out what is named twice, or lies in a folder that is named too."""
    places = [(_identity(a), a) for a in arguments]
    folders = {place for place, a in places if a.kind == "folder"}
    kept: dict[Path | str, Argument] = {}
    for place, argument in places:
        if not (isinstance(place, Path) and any(p in folders for p in place.parents)):
            kept.setdefault(place, argument)
    return list(kept.values())


def _identity(argument: Argument) -> Path | str:
    """What two names of one file or folder have in common; a link to a file is a file itself."""
    path = Path(argument.text)
    if argument.kind == "folder":
        return path.resolve()
    if argument.kind == "file":
        return path.parent.resolve() / path.name
    return argument.text


def _absolute(path: Path) -> Path:
    """Absolute; links stay, unless there is a `..`, which may lead elsewhere behind one."""
    if path.name == os.pardir:
        return path.resolve()
    if os.pardir in path.parts:
        return path.parent.resolve() / path.name
    return path.absolute()
