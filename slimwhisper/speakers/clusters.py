"""Clusters of voices: embeddings -> the number of speakers, and the speaker of each embedding.

The number comes from average linkage with a threshold on the cosine distance; k-means with that
number then assigns the embeddings. Both are scikit-learn's.
"""

import numpy as np
from numpy.typing import NDArray

from slimwhisper.speakers.choice import MOST_SPEAKERS

# Measured on seeds that the table of docs/speakers.md does not use.
CLUSTER_DISTANCE = 0.31  # average cosine distance at which two clusters are two speakers
MIN_CLUSTER_SHARE = 0.03  # of all embeddings: smaller clusters are not counted
MAX_LINKED = 2000  # embeddings to link, evenly chosen: memory grows with the square
_STARTS = 10  # of k-means
BIMODAL = 1.45  # kurtosis: 1 for two points of equal weight, 3 for a normal distribution
MIN_BIMODAL = 12  # embeddings that can show two modes
_REFINEMENTS = 10

Vectors = NDArray[np.float32]


def group(vectors: Vectors, speakers: int | None) -> NDArray[np.int64]:
    """Unit vectors [n, d] -> the speaker of each [n], from 0. speakers: None: to be counted."""
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
    """The number of speakers in unit vectors [n, d]; n at least 2."""
    from sklearn.cluster import AgglomerativeClustering

    sample = vectors[:: -(-len(vectors) // MAX_LINKED)]
    linkage = AgglomerativeClustering(
        n_clusters=None, distance_threshold=CLUSTER_DISTANCE, metric="cosine", linkage="average"
    )
    sizes = np.bincount(linkage.fit_predict(sample))
    large = int(np.count_nonzero(sizes >= max(2, MIN_CLUSTER_SHARE * len(sample))))
    return min(max(large, 1), MOST_SPEAKERS)


def centroids(vectors: Vectors, labels: NDArray[np.int64]) -> Vectors:
    """The unit vector at the centre of each cluster: [clusters, d]; no cluster is empty."""
    means = np.stack([vectors[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return unit(means)


def unit(vectors: Vectors) -> Vectors:
    """Vectors [..., d] scaled to length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def are_two(vectors: Vectors) -> bool:
    """Whether unit vectors [n, d] have two modes of about equal weight: projected on the line
    between the centres of two clusters, their kurtosis is low.
    """
    if len(vectors) < MIN_BIMODAL:
        return False
    centres = centroids(vectors, group(vectors, 2))
    projected = vectors @ (centres[0] - centres[-1])
    spread = float(projected.std())
    standard = (projected - projected.mean()) / max(spread, 1e-9)
    return spread > 0 and float(np.mean(standard**4)) < BIMODAL


def refine(
    vectors: Vectors, weights: NDArray[np.float32], labels: NDArray[np.int64], switch: float
) -> NDArray[np.int64]:
    """Better labels [n] of unit vectors [n, d] in order of time: the likeliest path, centres from
    it, and so on. Directions are compared from the mean of the centres, as short pieces of all
    voices have much in common. weights [n]: of the vectors; switch: as in `viterbi_path`.
    """
    labels = np.unique(labels, return_inverse=True)[1]
    if not labels.any():
        return labels
    for _ in range(_REFINEMENTS):
        count, before = labels.max() + 1, labels
        centres = np.stack(
            [
                np.average(vectors[labels == k], axis=0, weights=weights[labels == k])
                for k in range(count)
            ]
        )
        middle = centres.mean(axis=0)
        scores = weights[:, None] * (unit(vectors - middle) @ unit(centres - middle).T)
        labels = np.unique(viterbi_path(scores, switch), return_inverse=True)[1]
        if np.array_equal(labels, before) or not labels.any():
            break
    return labels


def viterbi_path(scores: NDArray[np.float32], switch: float) -> NDArray[np.int64]:
    """scores [n, states] -> the states [n] with the largest sum of scores less `switch` for each
    change of state.
    """
    n, states = scores.shape
    previous = np.zeros((n, states), np.int64)
    best = scores[0].astype(np.float64)
    for i in range(1, n):
        other = int(best.argmax())
        stays = best >= best[other] - switch
        previous[i] = np.where(stays, np.arange(states), other)
        best = np.where(stays, best, best[other] - switch) + scores[i]
    path = np.zeros(n, np.int64)
    path[-1] = best.argmax()
    for i in range(n - 1, 0, -1):
        path[i - 1] = previous[i, path[i]]
    return path
