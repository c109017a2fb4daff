"""The back end `embedding`: clusters of speaker embeddings from Resemblyzer's encoder.

There is an embedding of the 1.6 s around every quarter of a second of speech; clusters of them are
speakers. Each stretch of speech then gets the most likely sequence of speakers, and changes are
moved to the quietest moment nearby. Turns do not overlap: where two people speak, the turn goes to
the voice that is nearer to the embedding, usually the louder one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.audio.vad import merge_regions, speech_regions
from slimwhisper.speakers.clusters import centroids, group, unit, viterbi_path
from slimwhisper.speakers.encoder import WINDOW, VoiceEncoder, load_encoder
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.types import SAMPLE_RATE

STEP = SAMPLE_RATE // 4  # samples from one embedding to the next
PAUSE_MS = 250  # silence that ends a region of the voice-activity network
MAX_PAUSE = round(0.45 * SAMPLE_RATE)  # samples: shorter pauses do not end a stretch
NEIGHBOURS = 3  # embeddings on both sides that each one is averaged with, for clustering
SWITCH_COST = 0.15  # cosine, of a change of speaker
LEVEL = 10 ** (-30 / 20)  # of a window, root mean square, as in the encoder's training
_FRAME = 160  # samples: 10 ms, in the search for quiet moments

Region = tuple[int, int]  # samples [start, stop)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Speech without a long pause, in cells of about STEP samples."""

    region: Region
    cells: int

    @property
    def borders(self) -> list[int]:
        """The starts of the cells, then the end: samples."""
        start, stop = self.region
        return [start + (stop - start) * i // self.cells for i in range(self.cells + 1)]


def find_turns(samples: Samples, speakers: int | None) -> list[Turn]:
    """See `FindTurns`. Memory grows by 4 kB for each second of speech."""
    stretches = find_stretches(samples)
    vectors = load_encoder().embed(windows(samples, stretches))
    return turns_of(samples, stretches, vectors, speakers)


def find_stretches(samples: Samples) -> list[Stretch]:
    """The stretches of speech; pauses under MAX_PAUSE do not end one."""
    regions = speech_regions(samples, min_silence_ms=PAUSE_MS, pad_ms=60)
    joined = merge_regions(regions, MAX_PAUSE, len(samples))
    return [Stretch((a, b), max(1, round((b - a) / STEP))) for a, b in joined if a < b]


def embed_voice(
    samples: Samples, stretches: Sequence[Stretch], encoder: VoiceEncoder
) -> NDArray[np.float32]:
    """The voice in stretches of one speaker: a unit vector [256], zeros for no stretches."""
    vectors = encoder.embed(windows(samples, stretches))
    return unit(vectors.sum(axis=0))


def turns_of(
    samples: Samples,
    stretches: Sequence[Stretch],
    vectors: NDArray[np.float32],
    speakers: int | None,
) -> list[Turn]:
    """vectors [cells, d]: the embeddings of the cells of all stretches -> turns."""
    if not stretches:
        return []
    ends = np.cumsum([stretch.cells for stretch in stretches])
    parts = np.split(vectors, ends[:-1])
    smooth = np.concatenate([_smoothed(part) for part in parts])
    centres = centroids(smooth, group(smooth, speakers))
    turns: list[Turn] = []
    for stretch, part in zip(stretches, parts, strict=True):
        path = viterbi_path(part @ centres.T, SWITCH_COST)
        changes = [i for i in range(1, len(path)) if path[i] != path[i - 1]]
        cuts = [_quietest(samples, stretch, i) for i in changes]
        points = [stretch.region[0], *cuts, stretch.region[1]]
        for first, (start, stop) in zip([0, *changes], pairwise(points), strict=True):
            if start < stop:
                turns.append(Turn(start / SAMPLE_RATE, stop / SAMPLE_RATE, str(path[first])))
    return by_first_speech(turns)


def windows(samples: Samples, stretches: Sequence[Stretch]) -> Iterator[NDArray[np.float32]]:
    """The audio [WINDOW] around each cell, within its stretch, at the same level; shorter stretches
    are repeated.
    """
    for stretch in stretches:
        start, stop = stretch.region
        borders = stretch.borders
        for left, right in pairwise(borders):
            first = max(min((left + right - WINDOW) // 2, stop - WINDOW), start)
            audio = np.resize(samples.read(first, min(first + WINDOW, stop)), WINDOW)
            level = float(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))
            yield audio * np.float32(LEVEL / max(level, 1e-4))


def _smoothed(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each vector [n, d] averaged with its neighbours."""
    spans = [(max(i - NEIGHBOURS, 0), i + NEIGHBOURS + 1) for i in range(len(vectors))]
    return unit(np.stack([vectors[a:b].mean(axis=0) for a, b in spans]))


def _quietest(samples: Samples, stretch: Stretch, cell: int) -> int:
    """The quietest moment around the border before a cell: samples."""
    borders = stretch.borders
    first, last = borders[max(cell - 2, 0)], borders[min(cell + 2, stretch.cells)]
    power = np.square(samples.read(first, last), dtype=np.float64)
    frames = power[: len(power) // _FRAME * _FRAME].reshape(-1, _FRAME).mean(axis=1)
    if not len(frames):
        return borders[cell]
    smooth = np.convolve(np.pad(frames, 2, mode="edge"), np.ones(5) / 5, "valid")
    return first + int(smooth.argmin()) * _FRAME + _FRAME // 2
