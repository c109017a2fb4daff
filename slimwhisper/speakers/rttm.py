"""RTTM, NIST's text format of who speaks when: a line for each turn.

    SPEAKER recording channel start duration <NA> <NA> speaker <NA> <NA>

The back end of a file that another program made.
"""

import logging
import math
from functools import lru_cache
from pathlib import Path

from slimwhisper.errors import AudioError, OptionError
from slimwhisper.speakers.choice import RTTM
from slimwhisper.speakers.turns import Turn
from slimwhisper.text import one_line, shown

logger = logging.getLogger("slimwhisper")

_FIRST_NAMES = 5  # of recordings, that a message lists


def read_rttm(path: Path) -> dict[str, list[Turn]]:
    """The turns of a file, by the recordings' names; in their order of time.

    Lines of other types, comments (;;) and turns of no length are left out. Raises OptionError with
    the file, and the number of a line that is damaged.
    """
    found: dict[str, list[Turn]] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: cannot be read as RTTM ({one_line(error)})") from None
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or fields[0].startswith(";"):
            continue
        if fields[0] != "SPEAKER" and fields[0].isupper():
            continue
        try:
            _, name, _, start, duration, _, _, speaker, *_ = fields
            begin, seconds = float(start), float(duration)
            if not (begin >= 0 and seconds >= 0 and math.isfinite(begin + seconds)):
                raise ValueError
        except ValueError:
            raise OptionError(
                f"{path}, line {number}: {shown(line[:60])!r} is not RTTM: "
                "SPEAKER recording channel start duration <NA> <NA> speaker"
            ) from None
        turns = found.setdefault(name, [])
        if seconds:
            turns.append(Turn(begin, begin + seconds, speaker))
    if not found:
        raise OptionError(f"{path}: no SPEAKER lines; give a file in the format RTTM")
    return {name: sorted(turns, key=lambda t: (t.start, t.end)) for name, turns in found.items()}


def turns_of_recording(place: Path, name: str) -> list[Turn]:
    """The turns of the recording `name`, without suffix, in an RTTM file or a folder of them.

    A folder has NAME.rttm. A file of several recordings has their names; one of a single recording
    is for any. Raises AudioError if there is none for this recording, and OptionError as
    `read_rttm`.
    """
    path = place / f"{name}{RTTM}" if place.is_dir() else place
    try:
        state = path.stat()
    except OSError:
        raise AudioError(f"{name}: no {shown(path)} says who speaks in it; add that file") from None
    turns = _read_once(path, state.st_mtime_ns, state.st_size)
    if name in turns:
        return turns[name]
    if len(turns) > 1:
        some = ", ".join(shown(known) for known in list(turns)[:_FIRST_NAMES])
        raise AudioError(
            f"{name}: {shown(path)} has other recordings ({some}); "
            "the second field must be this one's name without its suffix"
        )
    ((other, only),) = turns.items()
    if place == path and name:
        logger.warning("%s: %s is of %s; its turns are taken for this one", name, path, other)
    return only


@lru_cache(maxsize=8)
def _read_once(path: Path, changed: int, size: int) -> dict[str, list[Turn]]:
    """A file is parsed once for all recordings of a job, unless it changes."""
    return read_rttm(path)
