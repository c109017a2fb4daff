"""Exports metrics of workers to Ray, with the same names as the server's at /metrics.

Ray prefixes each name with `ray_`, and adds its own tags, such as the worker's, to the outcome.
"""

from ray.util.metrics import Counter, Gauge

from slimwhisper.metrics import HELP
from slimwhisper.ray.engine_feed import FeedCounts

REQUESTS = "slimwhisper_requests"
COUNTED = ("audio_seconds", "busy_seconds", "steps", "filled_slots")
# fields of FeedCounts -> names
COUNTERS = {f: f"slimwhisper_{f}" for f in COUNTED} | dict.fromkeys(
    ("finished", "failed"), REQUESTS
)


class EngineMetrics:
    """The metrics of one engine for Ray's dashboard."""

    def __init__(self) -> None:
        self._seen = dict.fromkeys(COUNTERS, 0.0)
        self._counters = {
            name: Counter(name, HELP[name], ("outcome",) if name == REQUESTS else None)
            for name in {*COUNTERS.values()}
        }
        names = ("in_flight", "slots", "speed", "batch_fill")
        self._gauges = [Gauge(f"slimwhisper_{n}", HELP[f"slimwhisper_{n}"]) for n in names]

    def update(self, counts: FeedCounts, in_flight: int) -> None:
        """Add the counts since the last call."""
        for field, name in COUNTERS.items():
            total = getattr(counts, field)
            if more := total - self._seen[field]:
                self._counters[name].inc(more, {"outcome": field} if name == REQUESTS else None)
            self._seen[field] = total
        speed = counts.audio_seconds / counts.busy_seconds if counts.busy_seconds else 0.0
        fill = counts.filled_slots / counts.steps if counts.steps else 0.0
        values = (in_flight, counts.slots, speed, fill)
        for gauge, value in zip(self._gauges, values, strict=True):
            gauge.set(value)
