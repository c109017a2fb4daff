"""Voices told apart: embeddings -> how many speakers there are, and whose each one is.

The number comes from average linkage with a threshold on the cosine distance; k-means with that
number then assigns the embeddings. Both are scikit-learn's.
"""

import numpy as np
from numpy.typing import NDArray

from slimwhisper.types import MOST_SPEAKERS

# Measured on seeds that the table of docs/speakers.md does not use.
APART = 0.31  # average cosine distance from which two groups are two speakers
FEWEST_SHARE = 0.03  # of all embeddings: a smaller group is no speaker of its own
MOST_LINKED = 2000  # embeddings that are linked, evenly chosen: memory grows with the square
_STARTS = 10  # of k-means

Vectors = NDArray[np.float32]


def group(vectors: Vectors, speakers: int | None) -> NDArray[np.int64]:
    """Unit vectors [n, d] -> the speaker of each [n], numbered from 0. speakers: None: found."""
    if len(vectors) < 2:
        return np.zeros(len(vectors), np.int64)
    count = count_speakers(vectors) if speakers is None else speakers
    count = min(count, len(np.unique(vectors, axis=0)))
    if count == 1:
        return np.zeros(len(vectors), np.int64)
    from sklearn.cluster import KMeans

    labels: NDArray[np.int64] = KMeans(count, n_init=_STARTS, random_state=0).fit_predict(vectors)
    return labels.astype(np.int64)


def count_speakers(vectors: Vectors) -> int:
    """How many people there are in unit vectors [n, d]; n at least 2."""
    from sklearn.cluster import AgglomerativeClustering

    some = vectors[:: -(-len(vectors) // MOST_LINKED)]
    linked = AgglomerativeClustering(
        n_clusters=None, distance_threshold=APART, metric="cosine", linkage="average"
    )
    sizes = np.bincount(linked.fit_predict(some))
    large = int(np.count_nonzero(sizes >= max(2, FEWEST_SHARE * len(some))))
    return min(max(large, 1), MOST_SPEAKERS)


def centroids(vectors: Vectors, labels: NDArray[np.int64]) -> Vectors:
    """The unit vector in the middle of each group: [groups, d]; no group is empty."""
    middles = np.stack([vectors[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return unit(middles)


def unit(vectors: Vectors) -> Vectors:
    """Vectors [..., d] at length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def likeliest_path(scores: NDArray[np.float32], switch: float) -> NDArray[np.int64]:
    """scores [n, groups] -> the groups [n] with the largest sum of scores less `switch` for each
    change from one to another (Viterbi).
    """
    n, groups = scores.shape
    came_from = np.zeros((n, groups), np.int64)
    best = scores[0].astype(np.float64)
    for i in range(1, n):
        other = int(best.argmax())
        stays = best >= best[other] - switch
        came_from[i] = np.where(stays, np.arange(groups), other)
        best = np.where(stays, best, best[other] - switch) + scores[i]
    path = np.zeros(n, np.int64)
    path[-1] = best.argmax()
    for i in range(n - 1, 0, -1):
        path[i - 1] = came_from[i, path[i]]
    return path
