"""Speakers by name: their voices are compared with reference recordings."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import AudioError
from slimwhisper.speakers.embedding import Stretch, embed_voice, find_stretches
from slimwhisper.speakers.encoder import WINDOW, load_encoder
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.types import SAMPLE_RATE

SAME = 0.78  # cosine from which two voices are one; see docs/speakers.md
ENOUGH = 60  # windows of 1.6 s by which a speaker is recognised: of the longest turns


def name_known(
    samples: Samples, turns: Sequence[Turn], known: Sequence[tuple[str, str]]
) -> list[Turn]:
    """The turns with the names of those whose voice is that of a reference recording.

    known: names and files. Each name is given at most once, to the nearest voices first as a whole;
    the others are SPEAKER_00, ... by first speech. Raises AudioError for a file without speech.
    """
    from scipy.optimize import linear_sum_assignment

    references = np.stack([voice_of(path) for _, path in known])
    speakers = sorted({turn.speaker for turn in turns})
    if not speakers:
        return []
    voices = np.stack([_voice(samples, turns, speaker) for speaker in speakers])
    alike = references @ voices.T  # [known, speakers]
    rows, columns = linear_sum_assignment(np.where(alike >= SAME, -alike, 0))
    pairs = [(i, j) for i, j in zip(rows, columns, strict=True) if alike[i, j] >= SAME]
    names = {speakers[j]: known[i][0] for i, j in pairs}
    named = [replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in turns]
    return by_first_speech(named, keep=list(names.values()))


def voice_of(path: str) -> NDArray[np.float32]:
    """A reference recording's voice: a unit vector [256]. Raises AudioError."""
    try:
        state = Path(path).stat()
    except OSError:
        return _read_voice(path, 0, 0)  # which reports it
    return _read_voice(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _read_voice(path: str, changed: int, size: int) -> NDArray[np.float32]:
    """A reference is read once for all recordings of a job, unless it changes."""
    with closing(load_samples(path)) as samples:
        stretches = _longest([stretch.region for stretch in find_stretches(samples)])
        if not stretches:
            raise AudioError(f"{path}: no speech in it; give a few seconds of one person's voice")
        return embed_voice(samples, stretches, load_encoder())


def _voice(samples: Samples, turns: Sequence[Turn], speaker: str) -> NDArray[np.float32]:
    """A speaker's voice in a recording: a unit vector [256]."""
    mine = [turn for turn in turns if turn.speaker == speaker]
    regions = [(round(t.start * SAMPLE_RATE), round(t.end * SAMPLE_RATE)) for t in mine]
    inside = [(max(a, 0), min(b, len(samples))) for a, b in regions]
    return embed_voice(samples, _longest(inside), load_encoder())


def _longest(regions: Sequence[tuple[int, int]]) -> list[Stretch]:
    """The longest regions, until there are `ENOUGH` windows."""
    found: list[Stretch] = []
    left = ENOUGH
    for start, stop in sorted(regions, key=lambda r: r[0] - r[1]):
        if left <= 0 or stop - start < 1:
            break
        cells = min(max(1, round((stop - start) / WINDOW)), left)
        found.append(Stretch((start, stop), cells))
        left -= cells
    return found
