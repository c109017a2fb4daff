"""The names of known speakers, by comparing voices with reference recordings."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import AudioError, warnings_to
from slimwhisper.speakers.embedding import embed_voice
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import speech_regions

logger = logging.getLogger("slimwhisper")
SAME_VOICE = 0.5  # cosine at which two voices are the same; see docs/guides/speakers.md


def name_known(
    samples: Samples, turns: Sequence[Turn], known: Sequence[tuple[str, str]]
) -> list[Turn]:
    """The turns, with names for the speakers whose voices match reference recordings.

    known: names and files. Each name is given to one speaker at most, so that the similarities are
    largest in sum; the others are SPEAKER_00, ... by first speech. Raises AudioError for a file
    without speech.
    """
    from scipy.optimize import linear_sum_assignment

    references = np.stack([voice_of(path) for _, path in known])
    speakers = sorted({turn.speaker for turn in turns})
    if not speakers:
        return []
    voices = np.stack([_voice(samples, turns, speaker) for speaker in speakers])
    cosines = references @ voices.T  # [known, speakers]
    rows, columns = linear_sum_assignment(np.where(cosines >= SAME_VOICE, -cosines, 0))
    pairs = [(i, j) for i, j in zip(rows, columns, strict=True) if cosines[i, j] >= SAME_VOICE]
    names = {speakers[j]: known[i][0] for i, j in pairs}
    if not names:
        asked = (
            " or ".join(name for name, _ in known) + "; give 5 s, recorded like the conversation"
        )
        warnings_to.get(logger.warning)(f"no speaker's voice is close to that of {asked}")
    named = [replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in turns]
    return by_first_speech(named, keep=list(names.values()))


def voice_of(path: str) -> NDArray[np.float32]:
    """A reference recording's voice: a unit vector [192]. Raises AudioError."""
    try:
        state = Path(path).stat()
    except OSError:
        return _read_voice(path, 0, 0)  # raises AudioError
    return _read_voice(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _read_voice(path: str, modified: int, size: int) -> NDArray[np.float32]:
    """Reads a reference once for all recordings of a job, unless it changes."""
    with closing(load_samples(path)) as samples:
        regions = speech_regions(samples, min_silence_duration_ms=250, speech_pad_ms=60)
        voice = embed_voice(samples, regions)
    if not voice.any():
        raise AudioError(f"{path}: has no speech; give a few seconds of one person's voice")
    return voice


def _voice(samples: Samples, turns: Sequence[Turn], speaker: str) -> NDArray[np.float32]:
    """A speaker's voice in a recording: a unit vector [192]."""
    times = [(t.start * SAMPLE_RATE, t.end * SAMPLE_RATE) for t in turns if t.speaker == speaker]
    regions = [(max(round(start), 0), min(round(end), len(samples))) for start, end in times]
    return embed_voice(samples, regions)
