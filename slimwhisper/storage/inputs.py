"""Finds the recordings of arguments that are URIs or containers, with their outputs' locations."""

from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from posixpath import commonpath

from slimwhisper.audio.formats import AUDIO_SUFFIXES, Selection, is_hidden
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.storage.containers import Container, Recordings, is_container, safe_relative
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.listing import MAGIC, Location
from slimwhisper.storage.uris import is_uri, protocol_of, redact


def are_stored(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `transcribe` are URIs, manifests, tables or archives.

    Raises OptionError if only some are URIs.
    """
    if all(is_uri(a) or is_container(a) for a in arguments):
        return True
    for argument in arguments:
        if is_uri(argument):
            rule = "paths and URIs cannot be mixed in one job; run two jobs"
            raise OptionError(f"{redact(argument)}: {rule}")
    return False


class StoredInputs:
    """The recordings of arguments for which `are_stored` is true; the counterpart of `Inputs`.

    An argument is a file, a folder (with its subfolders), a pattern, or a container of recordings.
    Outputs mirror the tree below the common folder of all arguments.
    """

    is_list = is_one_file = False

    def __init__(self, arguments: Sequence[str], column: str | None = None) -> None:
        """column: of tables, with the recordings. Raises OptionError, DependencyError."""
        self._locations = [Location(argument) for argument in dict.fromkeys(arguments)]
        self._column = column
        self.selection = Selection()
        roots = [(protocol_of(location.uri), _root(location)) for location in self._locations]
        if len({protocol for protocol, _ in roots}) > 1:
            raise OptionError("stores of several kinds cannot be mixed; run a job for each kind")
        folders = [root for _, root in roots]
        self._base = folders[0] if len(folders) == 1 else commonpath(folders)
        self.is_job = len(roots) != 1 or not _is_recording(self._locations[0].path)

    def files(self) -> Recordings:
        """Every recording, and an error for each that cannot be found or listed, while the stores
        are being listed.
        """
        for location in self._locations:
            try:
                yield from self._recordings_at(location)
            except SlimWhisperError as error:
                yield error

    def _recordings_at(self, location: Location) -> Recordings:
        named = _is_recording(location.path) or is_container(location.path)
        nothing = True
        for file in location.files(named, partial(self._takes, location)):
            nothing = False
            # with its suffix: a store may have `a.mp3` and `a.wav`, and is too large to search for
            # such pairs
            output = safe_relative(file.path.removeprefix(self._base))
            if is_container(file.path):
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
        if location.pattern and is_container(path) and not path.endswith(".json"):
            return True
        return self.selection.takes(path, partial(location.head, path), location.dots)


def _is_recording(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in AUDIO_SUFFIXES


def _root(location: Location) -> str:
    """The folder of a location whose tree the outputs mirror."""
    path = location.top.rstrip("/")
    if not location.pattern and (_is_recording(path) or is_container(path)):
        return path.rpartition("/")[0]
    return path
