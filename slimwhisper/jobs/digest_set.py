"""A set of 64-bit digests, for millions of them in little memory."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

MERGE = 1 << 15  # new digests collected in a set before they join the sorted array


def digest_of(key: bytes) -> int:
    """64 bits: two of a million keys collide by chance once in 10^7 jobs."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


class Digests:
    """A set of 64-bit numbers, 8 bytes each: 8 MB for a million files."""

    def __init__(self, digests: NDArray[np.uint64] | None = None) -> None:
        self._sorted = np.sort(np.zeros(0, np.uint64) if digests is None else digests)
        self._new: set[int] = set()

    def __contains__(self, digest: int) -> bool:
        if digest in self._new:
            return True
        index = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return index < len(self._sorted) and int(self._sorted[index]) == digest

    def add(self, digest: int) -> bool:
        """Add a number; returns whether it is new."""
        if digest in self:
            return False
        self._new.add(digest)
        if len(self._new) >= MERGE:
            # Replace the array before emptying the set: another thread may be searching. Not by
            # np.union1d, whose table of hashes takes ten times the memory of the array.
            new = np.sort(np.fromiter(self._new, np.uint64, len(self._new)))
            merged = np.concatenate((self._sorted, new))
            merged.sort(kind="stable")  # merges two sorted runs
            self._sorted = merged
            self._new = set()
        return True
