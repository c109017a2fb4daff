"""The outline of a recording, for its picture."""

import base64
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples

COLUMNS = 1000
STRETCH = 1 << 20  # samples read at once


def outline(samples: Samples, columns: int = COLUMNS) -> str:
    """The lowest and the highest sample of each of `columns` stretches of equal length.

    Returns int8 [columns, 2], -127 to 127 for -1 to 1, in base64. Stretches without a sample, of
    recordings that have fewer than `columns`, are silent.
    """
    found = np.zeros((columns, 2), np.float32)
    edges = np.linspace(0, len(samples), columns + 1).round().astype(np.int64)
    for column, (start, stop) in enumerate(pairwise(edges.tolist())):
        for first in range(start, stop, STRETCH):
            piece: NDArray[np.float32] = samples.read(first, min(first + STRETCH, stop))
            if len(piece):
                found[column, 0] = min(found[column, 0], np.min(piece))
                found[column, 1] = max(found[column, 1], np.max(piece))
    packed = (found * 127).round().clip(-127, 127).astype(np.int8)
    return base64.b64encode(packed.tobytes()).decode()
