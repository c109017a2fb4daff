"""The back end `embedding`: clusters of speaker embeddings from Resemblyzer's encoder.

There is an embedding of the 1.6 s around every quarter of a second of speech: clusters of them say
how many speak. Each unit, a word or a few without a pause, has an embedding of its own, and the
most likely sequence of speakers over the units is the result. If people talk in turns that are
shorter than 1.6 s, the units are clustered instead. Turns do not overlap: where two people speak,
the turn goes to the voice that is nearer to the embedding, usually the louder one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.audio.vad import pack_regions, speech_regions
from slimwhisper.speakers.clusters import are_two, count_speakers, group, refine, unit
from slimwhisper.speakers.encoder import WINDOW, VoiceEncoder, load_encoder
from slimwhisper.speakers.turns import Turn, by_first_speech
from slimwhisper.speakers.units import find_units
from slimwhisper.types import SAMPLE_RATE

STEP = SAMPLE_RATE // 4  # samples from one embedding to the next
PAUSE_MS = 250  # silence that ends a region of the voice-activity network
MAX_PAUSE = round(0.45 * SAMPLE_RATE)  # samples: shorter pauses do not end a stretch
MAX_GAP = round(0.35 * SAMPLE_RATE)  # samples: shorter pauses do not end a turn
NEIGHBOURS = 3  # embeddings on both sides that each one is averaged with, for clustering
SWITCH_COST = 0.15  # cosine, of a change of speaker
LEVEL = 10 ** (-30 / 20)  # of a window, root mean square, as in the encoder's training

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


@dataclass(frozen=True, slots=True)
class Voices:
    """The embeddings of a recording, unit vectors."""

    cells: list[float]  # the middle of each cell of all stretches: samples
    smooth: NDArray[np.float32]  # [cells, d]: of 1.6 s, averaged with their neighbours
    units: list[Region]
    vectors: NDArray[np.float32]  # [units, d]


def find_turns(samples: Samples, speakers: int | None) -> list[Turn]:
    """See `FindTurns`. Memory grows by 6 kB for each second of speech."""
    return turns_of(find_voices(samples), speakers)


def find_voices(samples: Samples) -> Voices:
    """The embeddings of what is said."""
    stretches, encoder = find_stretches(samples), load_encoder()
    vectors = encoder.embed(windows(samples, stretches))
    parts = np.split(vectors, np.cumsum([stretch.cells for stretch in stretches])[:-1])
    smooth = [_smoothed(part) for part in parts if len(part)]
    units = find_units(samples, [stretch.region for stretch in stretches])
    audio = (_levelled(samples.read(start, min(stop, start + WINDOW))) for start, stop in units)
    return Voices(
        [(a + b) / 2 for stretch in stretches for a, b in pairwise(stretch.borders)],
        np.concatenate(smooth) if smooth else vectors,
        units,
        encoder.embed(audio),
    )


def turns_of(voices: Voices, speakers: int | None) -> list[Turn]:
    """The turns. speakers: their number; None: it is estimated."""
    units, vectors = voices.units, voices.vectors
    if not units:
        return []
    heard = count_speakers(voices.smooth) if len(voices.smooth) > 1 else 1
    # perhaps in turns that are too short to be heard in 1.6 s
    quick = speakers in (None, 2) and are_two(vectors)
    count = speakers or (2 if heard == 1 and quick else heard)
    if heard < count or (count == 2 and quick):
        labels = group(unit(vectors - vectors.mean(axis=0)), count)
    else:
        labels = _labels_of_units(voices, count)
    weights = np.sqrt([min(b - a, WINDOW) / SAMPLE_RATE for a, b in units])
    path = refine(vectors, weights.astype(np.float32), labels, SWITCH_COST)
    turns: list[tuple[int, int, str]] = []  # start, stop, speaker
    for (start, stop), speaker in zip(units, map(str, path), strict=True):
        goes_on = turns and turns[-1][2] == speaker and start - turns[-1][1] < MAX_GAP
        turns.append((turns.pop()[0] if goes_on else start, stop, speaker))
    return by_first_speech(Turn(a / SAMPLE_RATE, b / SAMPLE_RATE, name) for a, b, name in turns)


def _labels_of_units(voices: Voices, count: int) -> NDArray[np.int64]:
    """The clusters [units] of the embeddings of 1.6 s, most of whose cells are in each unit."""
    of_cells, cells = group(voices.smooth, count), np.array(voices.cells)
    labels = np.zeros(len(voices.units), np.int64)
    for i, (start, stop) in enumerate(voices.units):
        first, last = np.searchsorted(cells, (start, stop))
        nearest = int(np.abs(cells - (start + stop) / 2).argmin())
        inside = of_cells[first:last] if first < last else of_cells[[nearest]]
        labels[i] = np.bincount(inside).argmax()
    return labels


def find_stretches(samples: Samples) -> list[Stretch]:
    """The stretches of speech; pauses under MAX_PAUSE do not end one."""
    regions = speech_regions(samples, min_silence_ms=PAUSE_MS, pad_ms=60)
    joined = chain.from_iterable(pack_regions(regions, MAX_PAUSE, len(samples)))
    return [Stretch((a, b), max(1, round((b - a) / STEP))) for a, b in joined if a < b]


def embed_voice(
    samples: Samples, stretches: Sequence[Stretch], encoder: VoiceEncoder
) -> NDArray[np.float32]:
    """The voice in stretches of one speaker: a unit vector [256], zeros for no stretches."""
    vectors = encoder.embed(windows(samples, stretches))
    return unit(vectors.sum(axis=0))


def windows(samples: Samples, stretches: Sequence[Stretch]) -> Iterator[NDArray[np.float32]]:
    """The audio [WINDOW] around each cell, within its stretch, at the same level; shorter stretches
    are repeated.
    """
    for stretch in stretches:
        start, stop = stretch.region
        borders = stretch.borders
        for left, right in pairwise(borders):
            first = max(min((left + right - WINDOW) // 2, stop - WINDOW), start)
            yield _levelled(np.resize(samples.read(first, min(first + WINDOW, stop)), WINDOW))


def _levelled(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    level = float(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))
    return audio * np.float32(LEVEL / max(level, 1e-4))


def _smoothed(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each vector [n, d] averaged with its neighbours."""
    spans = [(max(i - NEIGHBOURS, 0), i + NEIGHBOURS + 1) for i in range(len(vectors))]
    return unit(np.stack([vectors[a:b].mean(axis=0) for a, b in spans]))
