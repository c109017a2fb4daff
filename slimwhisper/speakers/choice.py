"""The table of back ends that find speakers, and the checks of the options about speakers.

A new back end is a module with a function `(samples, speakers) -> turns` (see `turns.FindTurns`)
and a row of `BACKENDS`. Nothing here imports a back end's packages.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from slimwhisper.audio.formats import Selection
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.text import install_command
from slimwhisper.types import Options

MAX_LETTERS = 64  # of a name
RTTM = ".rttm"
UNNAMED = "SPEAKER_{:02}"  # by order of first speech


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to find speakers in samples."""

    module: str  # has `find_turns`
    needs: tuple[str, ...]  # modules of other packages
    package: str | None = None  # the package to install; None: the extra "diarize"

    @property
    def install(self) -> str:
        """The command that installs the packages."""
        return f"pip install {self.package}" if self.package else install_command("diarize")


BACKENDS = {
    "embedding": Backend("slimwhisper.speakers.embedding", ("resemblyzer", "sklearn")),
    "pyannote": Backend("slimwhisper.speakers.pyannote", ("pyannote.audio",), "pyannote.audio"),
}


def as_pairs(known: Any) -> tuple[tuple[str, str], ...]:
    """`known_speakers`, a mapping or pairs, as pairs (name, path). Raises OptionError."""
    pairs = known.items() if isinstance(known, Mapping) else known
    try:
        return tuple((name, fspath(path)) for name, path in pairs)
    except (TypeError, ValueError):
        raise OptionError(
            f"known_speakers {known!r}: give names with paths of recordings, "
            "such as {'Ann': 'ann.wav'}"
        ) from None


def named_file(text: str) -> tuple[str, str]:
    """NAME=FILE -> (name, file). Raises ValueError."""
    name, equals, file = text.partition("=")
    if not (name.strip() and equals and file):
        raise ValueError(f"{text!r} is not NAME=FILE, such as Ann=ann.wav")
    return name.strip(), file


def voices_in(folder: str | PathLike[str]) -> tuple[tuple[str, str], ...]:
    """A folder with a recording of each voice, NAME.wav or of another audio format -> (name, path)
    each, by name. Raises OptionError.
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


def check_speakers(options: Options) -> None:
    """Check the options about speakers, and that the files they name exist.

    Raises OptionError, and DependencyError for a missing package of the back end.
    """
    check_names("channel_names", options.channel_names)
    if options.channels is not None and options.diarize is not None:
        raise OptionError("channels: each channel is a speaker already; leave out diarize")
    if options.diarize is None:
        return
    if options.diarize in BACKENDS:
        require(options.diarize)
    else:
        _check_rttm(options)
    if options.known_speakers:
        check_known(options.known_speakers)
        require("embedding", "known_speakers")


def check_names(option: str, names: Sequence[Any]) -> None:
    """Raise OptionError for a speaker's name that cannot be one, or that stands there twice."""
    for name in names:
        if not (isinstance(name, str) and 0 < len(name.strip()) <= MAX_LETTERS):
            raise OptionError(f"{option}: {name!r}: give a name of 1 to {MAX_LETTERS} characters")
        if not name.isprintable():
            raise OptionError(f"{option}: {name!r}: give a name without line breaks and tabs")
        if names.count(name) > 1:
            raise OptionError(f"{option}: {name!r} is given twice; give each name once")


def missing(backend: str) -> list[str]:
    """The modules that a back end needs and that are not installed; imports none."""
    return [name for name in BACKENDS[backend].needs if not _is_installed(name)]


def require(backend: str, use: str = "") -> None:
    """Raises DependencyError if a module that a back end needs is not installed."""
    if names := missing(backend):
        raise DependencyError(
            f"{use or f'diarize={backend!r}'} needs {' and '.join(names)}: "
            f"{BACKENDS[backend].install}"
        )


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent is missing
        return False


def _check_rttm(options: Options) -> None:
    diarize: Any = options.diarize
    names = ", ".join(map(repr, BACKENDS))
    if not isinstance(diarize, (str, PathLike)):
        raise OptionError(f"diarize {diarize!r}: give {names}, or the path of an .rttm file")
    path = Path(diarize)
    if path.suffix.lower() != RTTM and not path.is_dir():
        raise OptionError(
            f"diarize {str(diarize)!r} is not {names}, an {RTTM} file, or a folder of them"
        )
    if not path.exists():
        raise OptionError(f"diarize: {path}: no such file")
    if path.is_dir() and not any(path.glob(f"*{RTTM}")):
        raise OptionError(f"diarize: {path}: no NAME{RTTM} files in this folder")
    if options.speakers is not None:
        raise OptionError("speakers: an .rttm file already has the number; leave this option out")
    if options.known_speakers:
        raise OptionError(
            "known_speakers: an .rttm file already has the names; leave this option out"
        )


def check_known(known: tuple[tuple[str, str], ...]) -> None:
    """Check names and files of known speakers. Raises OptionError."""
    check_names("known_speakers", [name for name, _ in known])
    for name, path in known:
        if re.fullmatch(r"SPEAKER_\d+", name):
            raise OptionError(
                f"known_speakers: {name!r} is reserved for unknown speakers; choose another name"
            )
        if not Path(path).is_file():
            raise OptionError(f"known_speakers: {path}: no such file, for {name!r}")
