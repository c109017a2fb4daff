"""The counters behind `/metrics`."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

LATENCIES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)  # seconds


@dataclass
class Histogram:
    """How often a value was at most each of some bounds."""

    bounds: tuple[float, ...]  # ascending
    total: float = 0.0  # of all values
    counts: list[int] = field(init=False)  # by the first bound that is not smaller; last: none

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """As Prometheus has them: each bound, and how many values are not above it."""
        yield from zip([*map(str, self.bounds), "+Inf"], accumulate(list(self.counts)), strict=True)


@dataclass
class Counts:
    """Only the service's thread writes them, except `refused`."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    audio_seconds: float = 0.0  # of finished recordings
    busy_seconds: float = 0.0  # that engines worked
    steps: int = 0  # of engines
    filled: int = 0  # slots in use, summed over the steps
    updates: int = 0  # of live streams
    merged: int = 0  # updates of streams that were due while another ran
    # seconds from when the newest audio that an update knew had come until the text that it
    # committed was told
    commit_latency: Histogram = field(default_factory=lambda: Histogram(LATENCIES))
