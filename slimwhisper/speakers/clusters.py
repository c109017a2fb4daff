"""Clusters of voices: embeddings -> the number of speakers, and the centre of each one's voice."""

import numpy as np
from numpy.typing import NDArray

from slimwhisper.speakers.choice import MOST_SPEAKERS
from slimwhisper.speakers.turns import Between

# Chosen on recordings that the tables of docs/guides/speakers.md name.
CLUSTER_DISTANCE = 0.75  # cosine distance of the farthest embeddings of one speaker
MIN_SHARE = 0.02  # of all weights: a smaller cluster is not counted
MAX_LINKED = 2000  # embeddings to link, evenly chosen: memory grows with the square
JOIN_DISTANCE = 0.25  # cosine distance of two centres, from which on down they are one speaker

Vectors = NDArray[np.float32]


def find_centres(vectors: Vectors, weights: Vectors, between: Between) -> Vectors:
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


def _centres(vectors: Vectors, weights: Vectors, labels: NDArray[np.int64]) -> Vectors:
    members = labels == np.arange(labels.max() + 1)[:, None]  # [k, n]
    return unit((members * weights) @ vectors)


def unit(vectors: Vectors) -> Vectors:
    """Vectors [..., d] scaled to length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
