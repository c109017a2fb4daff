"""Finds the recordings of arguments that are URIs or containers, with their outputs' locations."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from posixpath import commonpath

from slimwhisper.addresses import protocol_of, redact
from slimwhisper.audio.formats import AUDIO_SUFFIXES, Selection, is_hidden
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.files import InputFile, container_kind
from slimwhisper.storage.containers import Container, safe_relative
from slimwhisper.storage.listing import MAGIC, Location


class StoredInputs:
    """A job's `JobSource` whose arguments are URIs, or containers of recordings.

    An argument is a file, a folder (with its subfolders), a pattern, or a container of recordings.
    Outputs mirror the tree below the common folder of all arguments.
    """

    is_list = is_one_file = False

    def __init__(self, arguments: Sequence[str], column: str | None = None) -> None:
        """column: of tables, with the recordings. Raises OptionError, DependencyError."""
        self._locations = [Location(argument) for argument in dict.fromkeys(arguments)]
        self._column = column
        self.selection = Selection()
        if len({protocol_of(location.uri) for location in self._locations}) > 1:
            raise OptionError("stores of several kinds cannot be mixed; run a job for each kind")
        folders = [_root(location) for location in self._locations]
        self._base = folders[0] if len(folders) == 1 else commonpath(folders)
        self.is_job = len(folders) != 1 or not _is_recording(self._locations[0].path)

    def list(self) -> Iterator[InputFile | SlimWhisperError]:
        for location in self._locations:
            try:
                yield from self._recordings_at(location)
            except SlimWhisperError as error:
                yield error

    def _recordings_at(self, location: Location) -> Iterator[InputFile | SlimWhisperError]:
        nothing = True
        for file in location.files(_is_file(location.path), partial(self._takes, location)):
            nothing = False
            # with its suffix: a store may have `a.mp3` and `a.wav`, and is too large to search for
            # such pairs
            output = safe_relative(file.path.removeprefix(self._base))
            if container_kind(file.path):
                container = Container(location, file, output, self._column, self.selection)
                yield from container.recordings()
            else:
                yield InputFile(file, output, file.fingerprint)
        if nothing:
            yield AudioError(f"{redact(location.uri)}: no recordings there; check the address")

    def _takes(self, location: Location, path: str) -> bool:
        """Whether to read a file that a folder has or a pattern matches."""
        *folders, name = path.removeprefix(location.top).split("/")
        if any(map(is_hidden, folders)) and not location.dots:
            return False
        suffix = PurePosixPath(location.pattern[-1]).suffix if location.pattern else ""
        if suffix and not MAGIC.search(suffix):  # "*.dat" means all such files
            return location.dots or not is_hidden(name)
        # not in a folder, where a container may be the result of another job
        if location.pattern and container_kind(path) not in (None, ".json"):
            return True
        return self.selection.takes(path, partial(location.head, path), location.dots)


def _is_recording(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in AUDIO_SUFFIXES


def _is_file(path: str) -> bool:
    return _is_recording(path) or container_kind(path) is not None


def _root(location: Location) -> str:
    """The folder of a location whose tree the outputs mirror."""
    path = location.top.rstrip("/")
    return path.rpartition("/")[0] if not location.pattern and _is_file(path) else path
