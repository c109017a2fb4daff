"""The turns of the speakers in a recording, by the options: a back end's, or those of RTTM files
from other programs, NIST's text format:

    SPEAKER recording channel start duration <NA> <NA> speaker <NA> <NA>
"""

import logging
import math
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from slimwhisper.audio.samples import Samples
from slimwhisper.disk import read_text
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.outputs import rttm_field
from slimwhisper.speakers.choice import BACKENDS, RTTM, SpeakerOptions
from slimwhisper.speakers.turns import FindTurns, Turn
from slimwhisper.text import escape_line

logger = logging.getLogger("slimwhisper")

_LISTED_NAMES = 5  # most recordings that a message lists
MOST_MIB = 64  # of an RTTM file


def find_speakers(samples: Samples, options: SpeakerOptions, name: str = "") -> list[Turn]:
    """The turns of a recording, in order.

    name: the recording's, without suffix, to find it in RTTM files. Raises AudioError,
    DependencyError, OptionError.
    """
    assert options.diarize is not None
    if options.diarize not in BACKENDS:
        return turns_of_recording(Path(options.diarize), name)
    find_turns: FindTurns = import_module(BACKENDS[options.diarize].module).find_turns
    turns = find_turns(samples, options.speakers_between)
    if options.known_speakers:
        from slimwhisper.speakers.known import name_known

        turns = name_known(samples, turns, options.known_speakers)
    return turns


def prepare(options: SpeakerOptions) -> None:
    """Load what `find_speakers` needs, so that errors are reported once, before any recording is
    read. Raises as `find_speakers`.
    """
    assert options.diarize is not None
    if options.diarize not in BACKENDS:
        if Path(options.diarize).is_file():
            read_rttm(Path(options.diarize))
        return
    if options.diarize == "pyannote":
        from slimwhisper.speakers.pyannote import load_pipeline

        load_pipeline()
    if options.known_speakers:
        from slimwhisper.speakers.known import voice_of

        for _, path in options.known_speakers:
            voice_of(path)


def read_rttm(path: Path) -> dict[str, list[Turn]]:
    """The turns of a file, by the recordings' names; in the order of their times.

    Lines of other types, comments (;;) and turns of no length are left out. Raises OptionError with
    the file, and the number of an invalid line.
    """
    by_recording: dict[str, list[Turn]] = {}
    for number, line in enumerate(read_text(path, MOST_MIB).splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith(";"):
            continue
        if fields[0] != "SPEAKER" and fields[0].isupper():
            continue
        try:
            _, name, _, start, duration, _, _, speaker, *_ = fields
            begin, length = float(start), float(duration)
            if not (begin >= 0 and length >= 0 and math.isfinite(begin + length)):
                raise ValueError
        except ValueError:
            rule = "SPEAKER recording channel start duration <NA> <NA> speaker"
            what = f"{escape_line(line[:60])!r} is not RTTM: {rule}"
            raise OptionError(f"{path}, line {number}: {what}") from None
        turns = by_recording.setdefault(name, [])
        if length:
            turns.append(Turn(begin, begin + length, speaker))
    if not by_recording:
        raise OptionError(f"{path}: no SPEAKER lines; give a file in the format RTTM")
    for turns in by_recording.values():
        turns.sort(key=lambda turn: (turn.start, turn.end))
    return by_recording


def turns_of_recording(file_or_folder: Path, name: str) -> list[Turn]:
    """The turns of the recording `name`, without suffix, in an RTTM file or a folder of them.

    A folder has NAME.rttm. In a file with several recordings the name is looked up; one with a
    single recording serves any. Raises AudioError if this recording is missing, and OptionError as
    `read_rttm`.
    """
    folder = file_or_folder.is_dir()
    path = file_or_folder / f"{name}{RTTM}" if folder else file_or_folder
    try:
        state = path.stat()
    except OSError:
        what = f"no RTTM file {escape_line(path)} for this recording"
        raise AudioError(f"{name}: {what}; add that file") from None
    turns = _read_once(path, state.st_mtime_ns, state.st_size)
    if (field := rttm_field(name)) in turns:
        return turns[field]
    if len(turns) > 1:
        others = ", ".join(escape_line(other) for other in list(turns)[:_LISTED_NAMES])
        what = f"{escape_line(path)} has other recordings ({others})"
        rule = "the second field must be this one's name without its suffix"
        raise AudioError(f"{name}: {what}; {rule}")
    ((other, only),) = turns.items()
    if not folder and name:
        logger.warning("%s: %s is for %s; its turns are used for this one", name, path, other)
    return only


@lru_cache(maxsize=8)
def _read_once(path: Path, modified: int, size: int) -> dict[str, list[Turn]]:
    """Parses a file once for all recordings of a job, unless it changes."""
    return read_rttm(path)
