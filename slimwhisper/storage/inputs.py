"""Arguments that are URIs or containers -> recordings, each with the place of its outputs."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from posixpath import commonpath

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.storage.containers import Container, Found, below, is_container
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.listing import MAGIC, Place
from slimwhisper.storage.uris import is_uri, protocol_of, shown_uri


def are_stored(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `transcribe` are these: URIs, manifests, tables or archives.

    Raises OptionError where only some are URIs.
    """
    if all(is_uri(a) or is_container(a) for a in arguments):
        return True
    for argument in arguments:
        if is_uri(argument):
            raise OptionError(
                f"{shown_uri(argument)}: paths and URIs have no place in common for their outputs; "
                "give them to two jobs"
            )
    return False


class StoredInputs:
    """The recordings of arguments for which `are_stored` holds, as `Inputs` gives those of paths.

    An argument is a file, a folder (with all below it), a pattern, or a container of recordings.
    What lies in a folder counts if it has the suffix of a recording. Outputs mirror the tree below
    the folder that all arguments have in common.
    """

    is_list = is_one_file = False

    def __init__(self, arguments: Sequence[str], column: str | None = None) -> None:
        """column: of tables, with the recordings. Raises OptionError, DependencyError."""
        self._places = [Place(argument) for argument in dict.fromkeys(arguments)]
        self._column = column
        roots = [(protocol_of(place.uri), _root(place.path)) for place in self._places]
        if len({protocol for protocol, _ in roots}) > 1:
            raise OptionError(
                "inputs in stores of several kinds have no place in common for their outputs; "
                "give each kind to a job of its own"
            )
        folders = [root for _, root in roots]
        self._base = folders[0] if len(folders) == 1 else commonpath(folders)
        self.is_job = len(roots) != 1 or not _is_recording(self._places[0].path)

    def files(self) -> Found:
        """Every recording, and an error for each that cannot be found or listed; as they are
        listed.
        """
        for place in self._places:
            try:
                yield from self._in(place)
            except SlimWhisperError as error:
                yield error

    def _in(self, place: Place) -> Found:
        def is_wanted(path: str) -> bool:
            # in a folder, a container may be the result of another job
            return _is_recording(path) or (is_container(path) and path == place.path)

        nothing = True
        for file in place.files(is_wanted):
            nothing = False
            # with its suffix: a store may hold `a.mp3` and `a.wav`, and is too large to look for
            # such pairs
            output = below(file.path.removeprefix(self._base))
            if is_container(file.path):
                yield from Container(place, file, output, self._column).recordings()
            else:
                yield InputFile(file, output, file.stamp)
        if nothing:
            yield AudioError(f"{shown_uri(place.uri)}: no recordings there; check the address")


def _is_recording(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in AUDIO_SUFFIXES


def _root(path: str) -> str:
    """The folder whose tree the outputs of a place mirror."""
    parts = path.rstrip("/").split("/")
    for number, part in enumerate(parts):
        if MAGIC.search(part):
            return "/".join(parts[:number])
    if _is_recording(path) or is_container(path):
        return "/".join(parts[:-1])
    return "/".join(parts)
