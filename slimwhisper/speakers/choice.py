"""Which back end finds the speakers: the one table of them, and the options about speakers.

A new back end is a module with a function `(samples, speakers) -> turns` (see `turns.FindTurns`)
and a row of `BACKENDS`. Nothing here imports what a back end needs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.types import Options

MOST_LETTERS = 64  # of a name
RTTM = ".rttm"
UNNAMED = "SPEAKER_{:02}"  # by order of first speech
INSTALL = "pip install 'slimwhisper[diarize]'"


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to find speakers in samples."""

    module: str  # has `find_turns`
    needs: tuple[str, ...]  # packages, as they are imported
    install: str


BACKENDS = {
    "embedding": Backend("slimwhisper.speakers.embedding", ("resemblyzer", "sklearn"), INSTALL),
    "pyannote": Backend(
        "slimwhisper.speakers.pyannote", ("pyannote.audio",), "pip install pyannote.audio"
    ),
}


def as_pairs(known: Any) -> tuple[tuple[str, str], ...]:
    """`known_speakers` as it is kept: pairs (name, path) of a mapping, or of pairs.

    Raises OptionError for anything else.
    """
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


def check_speakers(options: Options) -> None:
    """Whether the options about speakers agree, and what they name is there.

    Raises OptionError, and DependencyError for a package that the back end needs.
    """
    if options.diarize is None:
        return
    if options.diarize in BACKENDS:
        require(options.diarize)
    else:
        _check_rttm(options)
    if options.known_speakers:
        _check_known(options.known_speakers)
        require("embedding", "known_speakers")


def missing(backend: str) -> list[str]:
    """The packages that a back end needs and that are not installed; imports none."""
    return [name for name in BACKENDS[backend].needs if not _is_installed(name)]


def require(backend: str, use: str = "") -> None:
    """Raises DependencyError if something that a back end needs is not installed."""
    lacking = missing(backend)
    if lacking:
        raise DependencyError(
            f"{use or f'diarize={backend!r}'} needs {' and '.join(lacking)}: "
            f"{BACKENDS[backend].install}"
        )


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent is not there
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
        raise OptionError("speakers: an .rttm file says how many there are; drop it")
    if options.known_speakers:
        raise OptionError("known_speakers: an .rttm file names its speakers; drop it")


def _check_known(known: tuple[tuple[str, str], ...]) -> None:
    names = [name for name, _ in known]
    for name, path in known:
        if not (isinstance(name, str) and 0 < len(name.strip()) <= MOST_LETTERS):
            raise OptionError(f"known_speakers: {name!r}: a name has 1 to {MOST_LETTERS} letters")
        if not name.isprintable():
            raise OptionError(f"known_speakers: {name!r}: a name has no line breaks or tabs")
        if re.fullmatch(r"SPEAKER_\d+", name):
            raise OptionError(f"known_speakers: {name!r} is for those without a name")
        if names.count(name) > 1:
            raise OptionError(
                f"known_speakers: {name!r} is there twice; give one recording of each"
            )
        if not Path(path).is_file():
            raise OptionError(f"known_speakers: {path}: no such file, for {name!r}")
