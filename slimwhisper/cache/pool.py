"""The free pages of the text cache, on the host, without tensors."""

import heapq
from collections.abc import Iterable

PAGE = 16  # tokens


def pages_of(tokens: int) -> int:
    """How many pages a text of this many tokens takes."""
    return -(-tokens // PAGE)


class PagePool:
    """Free pages 0 .. count - 1; the lowest are taken first, so that little memory is touched."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self.peak = 0  # most pages in use at a time

    @property
    def free(self) -> int:
        """How many pages are free."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many pages are in use."""
        return self.count - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate free pages; there must be enough."""
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.peak = max(self.peak, self.used)
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Free allocated pages."""
        for page in pages:
            heapq.heappush(self._free, page)
