"""The back end `embedding`: who of three speaks in windows of 10 s, and whose voice that is.

As in pyannote's pipeline (Bredin, Interspeech 2023), a network finds the speakers of each window,
and clusters of voices say which of them are the same person. Here a speaker's speech in a window is
cut in pieces of about 1.5 s that have an embedding each, as the network may take two people for
one. Then the most likely speakers of a frame speak in it, as many as are heard at once.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples
from slimwhisper.audio.threads import use_threads
from slimwhisper.speakers.choice import MOST_SPEAKERS
from slimwhisper.speakers.networks import (
    FIELD,
    FRAME,
    FRAMES,
    HOP,
    LOCAL,
    WIDTH,
    WINDOW,
    load_segmentation,
    load_voices,
    spectrogram,
)
from slimwhisper.speakers.turns import Between, Turn, by_first_speech
from slimwhisper.types import SAMPLE_RATE

STEP = 296  # frames from one window to the next: 5 s
HEARD = 0.5  # probability from which on a speaker of a window may speak
SPEAKING = 0.5  # of the speakers that are expected in a frame: one more speaks
PAUSE = round(0.3 * SAMPLE_RATE / FRAME)  # frames: a longer one ends a piece
PIECE = 1.5 * SAMPLE_RATE / FRAME  # frames, about
LEAST = 12  # frames of the spectrogram, 10 ms each, that an embedding needs
SURE = 60  # of them, from which on an embedding tells how many speak
SHARED = 0.5  # weight of the voice of all pieces of a speaker's in a window, in each of them
MAX_VOICE = 20 * SAMPLE_RATE  # samples that a voice is told by

# Chosen on recordings that the tables of docs/guides/speakers.md name.
CLUSTER_DISTANCE = 0.75  # cosine distance of the farthest embeddings of one speaker
MIN_SHARE = 0.02  # of all weights: a smaller cluster is not counted
MAX_LINKED = 2000  # embeddings to link, evenly chosen: memory grows with the square
JOIN_DISTANCE = 0.25  # cosine distance of two centres, from which on down they are one speaker

Region = tuple[int, int]  # samples [start, stop)
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """Speech of one speaker of a window."""

    window: int
    local: int
    frames: slice  # of the window
    alone: int  # frames of the spectrogram in which nobody else speaks
    voice: Vector  # unit vector; zeros: too short


def find_turns(samples: Samples, between: Between) -> list[Turn]:
    """See `FindTurns`. Memory grows by about 10 kB for each second."""
    # while a model decodes, one thread is faster than several that compete with its threads
    with ThreadPoolExecutor(1, initializer=use_threads) as pool:
        windows, pieces = pool.submit(_listen, samples).result()
    alone = np.array([piece.alone if piece.voice.any() else 0 for piece in pieces], np.float32)
    if not alone.any():
        return []
    voices = _with_their_windows(pieces, alone)
    sure = alone >= min(SURE, alone.max())
    centres = find_centres(voices[sure], alone[sure], between)
    nearest, end = (voices @ centres.T).argmax(axis=1), len(samples) / SAMPLE_RATE
    turns = _turns(windows, pieces, nearest)
    return by_first_speech(replace(t, end=min(t.end, end)) for t in turns if t.start < end)


def _listen(samples: Samples) -> tuple[NDArray[np.float32], list[SpokenPiece]]:
    """The probabilities of all windows [windows, FRAMES, LOCAL], and their pieces."""
    segmentation, voices = load_segmentation(), load_voices()
    found, pieces = [], list[SpokenPiece]()
    for window in range(1 + max(0, -(-(len(samples) - WINDOW) // (STEP * FRAME)))):
        start = window * STEP * FRAME
        audio = samples.read(start, min(start + WINDOW, len(samples)))
        audio = np.pad(audio, (0, WINDOW - len(audio)))
        found.append(segmentation(audio))
        speaks, features = found[-1] > HEARD, spectrogram(audio)
        one = speaks.sum(axis=1) == 1
        # the frame of the network in whose middle each one of the spectrogram is
        middles = np.arange(len(features)) * HOP + (WIDTH - FIELD) / 2
        nearest = np.rint(middles / FRAME).astype(int).clip(0, FRAMES - 1)
        for local in range(LOCAL):
            alone = speaks[:, local] & one
            # who is never alone has a voice of what is heard
            usable = alone if alone.any() else speaks[:, local]
            for frames in _cut(speaks[:, local]):
                inside = np.zeros(FRAMES, bool)
                inside[frames] = usable[frames]
                used = inside[nearest]
                count = int(used.sum())
                voice = np.zeros(voices.SIZE, np.float32)
                if count >= LEAST:
                    voice = voices(features[torch.from_numpy(used)])
                pieces.append(SpokenPiece(window, local, frames, count * bool(alone.any()), voice))
    return np.stack(found), pieces


def _cut(speaks: NDArray[np.bool_]) -> Iterator[slice]:
    """A speaker's speech [FRAMES] -> the frames of its pieces."""
    frames = np.flatnonzero(speaks)
    for run in np.split(frames, np.flatnonzero(np.diff(frames) > PAUSE) + 1):
        if len(run):
            for piece in np.array_split(run, max(1, round(len(run) / PIECE))):
                yield slice(int(piece[0]), int(piece[-1]) + 1)


def _with_their_windows(pieces: Sequence[SpokenPiece], alone: Vector) -> Vector:
    """The voices [pieces, d], unit vectors, each with a share of its speaker's in the window."""
    own = np.stack([piece.voice for piece in pieces])
    speakers = [piece.window * LOCAL + piece.local for piece in pieces]
    index = np.unique(speakers, return_inverse=True)[1]
    sums = np.zeros((index.max() + 1, own.shape[1]), np.float32)
    np.add.at(sums, index, own * alone[:, None])
    weights = np.bincount(index, weights=alone).clip(1)
    return unit(own + SHARED * (sums / weights[:, None])[index])


def _turns(
    windows: NDArray[np.float32], pieces: Sequence[SpokenPiece], speakers: NDArray[np.int64]
) -> Iterator[Turn]:
    """windows [windows, FRAMES, LOCAL]: probabilities; speakers [pieces], from 0."""
    count = int(speakers.max()) + 1
    frames = (len(windows) - 1) * STEP + FRAMES
    seen, expected = np.zeros(frames), np.zeros(frames)
    likely = np.zeros((frames, count))
    for window, probabilities in enumerate(windows):
        place = slice(window * STEP, window * STEP + FRAMES)
        seen[place] += 1
        expected[place] += probabilities.sum(axis=1)
    for piece, speaker in zip(pieces, speakers, strict=True):
        first = piece.window * STEP
        place = slice(first + piece.frames.start, first + piece.frames.stop)
        likely[place, speaker] += windows[piece.window, piece.frames, piece.local]
    at_once = np.floor(expected / seen + 1 - SPEAKING)
    # a speaker's rank in each frame: 0 for the most likely
    rank = (-likely).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    speaking = (rank < at_once[:, None]) & (likely > 0)
    for speaker in range(count):
        edges = np.flatnonzero(np.diff(speaking[:, speaker], prepend=False, append=False))
        for start, stop in (edges * FRAME + (FIELD - FRAME) / 2).reshape(-1, 2) / SAMPLE_RATE:
            yield Turn(float(start), float(stop), str(speaker))


def embed_voice(samples: Samples, regions: Sequence[Region]) -> Vector:
    """The voice in regions of one speaker, the longest first, of up to 20 s in all: a unit vector
    [192]; zeros if they are too short.
    """
    parts, remaining = [], MAX_VOICE
    for start, stop in sorted(regions, key=lambda region: region[0] - region[1]):
        audio = samples.read(start, min(stop, start + remaining))
        if len(audio) >= WIDTH:
            parts.append(spectrogram(audio))
            remaining -= len(audio)
    voices, features = load_voices(), torch.cat(parts) if parts else torch.zeros(0)
    if len(features) < LEAST:
        return np.zeros(voices.SIZE, np.float32)
    with ThreadPoolExecutor(1, initializer=use_threads) as pool:
        return pool.submit(voices, features).result()


def find_centres(vectors: Vector, weights: Vector, between: Between) -> Vector:
    """Unit vectors [n, d], n at least 1, and their weights [n], above 0 -> the speakers' unit
    vectors [k, d]. between: how many, if there are as many embeddings; counted if the two differ.

    Complete linkage; then, if they are counted, speakers whose centres are near are joined (average
    linkage): the more embeddings one has, the farther are some of them apart.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    least, most = between
    sample = slice(None, None, -(-len(vectors) // MAX_LINKED))
    labels = np.zeros(1, np.int64)
    if len(vectors[sample]) > 1:
        tree = linkage(vectors[sample], "complete", "cosine")
        labels = fcluster(tree, CLUSTER_DISTANCE, "distance") - 1
        if least == most or labels.max() >= MOST_SPEAKERS:
            number = most if least == most else MOST_SPEAKERS
            labels = fcluster(tree, number, "maxclust") - 1
    centres = _centres(vectors[sample], weights[sample], labels)
    if least < most:
        shares = np.bincount(labels, weights[sample])
        counted = shares >= min(MIN_SHARE * shares.sum(), shares.max())
        centres = centres[counted]
        if len(centres) > 1:
            near = fcluster(linkage(centres, "average", "cosine"), JOIN_DISTANCE, "distance") - 1
            centres = _centres(centres, shares[counted], near)
        if not least <= len(centres) <= most:
            number = least if len(centres) < least else most
            return find_centres(vectors, weights, (number, number))
    return centres


def _centres(vectors: Vector, weights: Vector, labels: NDArray[np.int64]) -> Vector:
    members = labels == np.arange(labels.max() + 1)[:, None]  # [k, n]
    return unit((members * weights) @ vectors)


def unit(vectors: Vector) -> Vector:
    """Vector [..., d] scaled to length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
