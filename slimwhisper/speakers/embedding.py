"""The back end `embedding`: voices by Resemblyzer's encoder, told apart by clustering.

A speaker embedding of the 1.6 s around every quarter of a second of speech; groups of them are
speakers. Each stretch of speech then goes to the likeliest sequence of speakers, and a change is
moved to the quietest moment nearby. Nobody speaks at the same time as another here: an overlap goes
to the speaker whose voice is nearer to what is heard, mostly the louder one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.audio.vad import merge_regions, speech_regions
from slimwhisper.speakers.clusters import centroids, group, likeliest_path, unit
from slimwhisper.speakers.encoder import WINDOW, Encoder, load_encoder
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.types import SAMPLE_RATE

STEP = SAMPLE_RATE // 4  # samples from one embedding to the next
PAUSE_MS = 250  # a longer silence ends a stretch that the voice-activity network finds
JOINED = round(0.45 * SAMPLE_RATE)  # samples: shorter pauses are inside a turn
AROUND = 3  # embeddings on both sides with which one is averaged, to tell voices apart
SWITCH = 0.15  # cosine that a change of speaker costs
LEVEL = 10 ** (-30 / 20)  # of a window, root mean square; the encoder learned with it
_FRAME = 160  # samples: 10 ms, of the search for quiet moments

Region = tuple[int, int]  # samples [start, stop)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Speech without a long pause, in cells of about STEP samples."""

    region: Region
    cells: int

    @property
    def borders(self) -> list[int]:
        """Where the cells begin, then the end: samples."""
        start, stop = self.region
        return [start + (stop - start) * i // self.cells for i in range(self.cells + 1)]


def find_turns(samples: Samples, speakers: int | None) -> list[Turn]:
    """See `FindTurns`. Memory does not grow with the length, but for 4 KB a second of speech."""
    stretches = find_stretches(samples)
    vectors = load_encoder().embed(windows(samples, stretches))
    return turns_of(samples, stretches, vectors, speakers)


def find_stretches(samples: Samples) -> list[Stretch]:
    """Where there is speech, silences under JOINED included."""
    regions = speech_regions(samples, min_silence_ms=PAUSE_MS, pad_ms=60)
    joined = merge_regions(regions, JOINED, len(samples))
    return [Stretch((a, b), max(1, round((b - a) / STEP))) for a, b in joined if a < b]


def embed_voice(
    samples: Samples, stretches: Sequence[Stretch], encoder: Encoder
) -> NDArray[np.float32]:
    """The one voice in some stretches: a unit vector [256], zeros if there are none."""
    vectors = encoder.embed(windows(samples, stretches))
    return unit(vectors.sum(axis=0))


def turns_of(
    samples: Samples,
    stretches: Sequence[Stretch],
    vectors: NDArray[np.float32],
    speakers: int | None,
) -> list[Turn]:
    """vectors [all cells, d]: the embeddings of the stretches' cells -> turns."""
    if not stretches:
        return []
    ends = np.cumsum([stretch.cells for stretch in stretches])
    parts = np.split(vectors, ends[:-1])
    smooth = np.concatenate([_averaged(part) for part in parts])
    middles = centroids(smooth, group(smooth, speakers))
    turns: list[Turn] = []
    for stretch, part in zip(stretches, parts, strict=True):
        path = likeliest_path(part @ middles.T, SWITCH)
        changes = [i for i in range(1, len(path)) if path[i] != path[i - 1]]
        cuts = [_quietest(samples, stretch, i) for i in changes]
        points = [stretch.region[0], *cuts, stretch.region[1]]
        for first, (start, stop) in zip([0, *changes], pairwise(points), strict=True):
            if start < stop:
                turns.append(Turn(start / SAMPLE_RATE, stop / SAMPLE_RATE, str(path[first])))
    return by_first_speech(turns)


def windows(samples: Samples, stretches: Sequence[Stretch]) -> Iterator[NDArray[np.float32]]:
    """The sound [WINDOW] around each cell, within its stretch, at an even level; what is shorter
    is repeated.
    """
    for stretch in stretches:
        start, stop = stretch.region
        borders = stretch.borders
        for left, right in pairwise(borders):
            first = max(min((left + right - WINDOW) // 2, stop - WINDOW), start)
            sound = samples.read(first, min(first + WINDOW, stop))
            sound = np.resize(sound, WINDOW)
            loud = float(np.sqrt(np.mean(np.square(sound, dtype=np.float64))))
            yield sound * np.float32(LEVEL / max(loud, 1e-4))


def _averaged(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each vector [n, d] averaged with its neighbours."""
    spans = [(max(i - AROUND, 0), i + AROUND + 1) for i in range(len(vectors))]
    return unit(np.stack([vectors[a:b].mean(axis=0) for a, b in spans]))


def _quietest(samples: Samples, stretch: Stretch, cell: int) -> int:
    """The quietest moment around the border before a cell: samples."""
    borders = stretch.borders
    first, last = borders[max(cell - 2, 0)], borders[min(cell + 2, stretch.cells)]
    power = np.square(samples.read(first, last), dtype=np.float64)
    frames = power[: len(power) // _FRAME * _FRAME].reshape(-1, _FRAME).mean(axis=1)
    if not len(frames):
        return borders[cell]
    even = np.convolve(np.pad(frames, 2, mode="edge"), np.ones(5) / 5, "valid")
    return first + int(even.argmin()) * _FRAME + _FRAME // 2
