"""Arguments that are URIs or containers -> recordings, each with the place of its outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError, StorageError
from slimwhisper.storage.containers import Member, below, is_container, members
from slimwhisper.storage.listing import MAGIC, Found, Place
from slimwhisper.storage.uris import is_uri, shown_uri


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


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the inputs that any process can list by itself. It can be pickled.

    Outputs mirror the tree below `base`, a path in the file system of `uri`.
    """

    uri: str  # of a file, a folder, a pattern, or a container
    base: str
    column: str | None = None
    deep: bool = True  # of a folder: with all folders below
    split: bool = False  # a part of an argument, where there may be nothing

    def recordings(self) -> Iterator[Member | SlimWhisperError]:
        """Every recording, and an error for each that cannot be listed; as they are listed."""
        try:
            place = Place(self.uri)

            def is_wanted(path: str) -> bool:
                # in a folder, a container may be the result of another job
                return _is_recording(path) or (is_container(path) and path == place.path)

            nothing = True
            for found in place.files(is_wanted, deep=self.deep):
                nothing = False
                yield from self._of(place, found)
            if nothing and not self.split:
                yield AudioError(f"{shown_uri(self.uri)}: no recordings there; check the address")
        except SlimWhisperError as error:
            yield error

    def _of(self, place: Place, found: Found) -> Iterator[Member | SlimWhisperError]:
        output = self._output(found.path)
        if is_container(found.path):
            yield from members(place, found, output, self.column)
        else:
            yield place.file(found), output

    def _output(self, path: str) -> str:
        """Where the outputs of a file lie. It keeps its suffix: a store may hold `a.mp3` and
        `a.wav`, and is too large to look for such pairs.
        """
        return below(path.removeprefix(self.base))


class StoredInputs:
    """The recordings of arguments for which `is_stored` holds.

    An argument is a file, a folder (with all below it), a pattern, or a container of recordings.
    What lies in a folder counts if it has the suffix of a recording.
    """

    def __init__(self, arguments: Sequence[str], column: str | None = None) -> None:
        """column: of tables, with the recordings. Raises OptionError, DependencyError."""
        places = [Place(argument) for argument in dict.fromkeys(arguments)]
        roots = [(place.protocol, _root(place.path)) for place in places]
        if len({protocol for protocol, _ in roots}) > 1:
            raise OptionError(
                "inputs in stores of several kinds have no place in common for their outputs; "
                "give each kind to a job of its own"
            )
        base = _common([root for _, root in roots])
        self._shards = [Shard(place.uri, base, column) for place in places]
        self.is_job = len(places) != 1 or not _is_recording(places[0].path)

    def shards(self) -> Iterator[Shard]:
        """The inputs in parts, which together are all of them: each container that a pattern
        matches, each folder that lies in an argument, and what is left of each argument.

        An argument that cannot be listed is a part by itself, and so reports that.
        """
        for shard in self._shards:
            place = Place(shard.uri)
            parts: Iterator[str] = iter(())
            if MAGIC.search(place.path):
                if is_container(place.path):
                    parts = (found.path for found in place.files(is_container))
            elif not (_is_recording(place.path) or is_container(place.path)):
                parts = place.folders()
            whole = True
            try:
                for path in parts:
                    whole = False
                    yield replace(shard, uri=place.address_of(path), split=True)
            except StorageError:
                whole = True
            if whole:
                yield shard
            elif not MAGIC.search(place.path):
                yield replace(shard, deep=False, split=True)

    def recordings(self) -> Iterator[Member | SlimWhisperError]:
        """Every recording, and an error for each that cannot be found or listed."""
        for shard in self._shards:
            yield from shard.recordings()


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


def _common(roots: Sequence[str]) -> str:
    """The folder that all have in common."""
    split = [root.split("/") for root in roots]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "/".join(common)
