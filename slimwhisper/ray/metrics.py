"""Metrics of workers for Ray, with the names that the server has at /metrics.

Ray puts `ray_` before each name, and its own tags, such as the worker's, beside the outcome.
"""

from ray.util import metrics

from slimwhisper.ray.results import FeedCounts

# names without prefix, and the fields of FeedCounts that they add up
COUNTERS = {
    "slimwhisper_audio_seconds": ("audio_seconds", "Seconds of audio transcribed."),
    "slimwhisper_busy_seconds": ("busy_seconds", "Seconds the engines worked."),
    "slimwhisper_steps": ("steps", "Engine steps; a step advances every slot in use."),
    "slimwhisper_filled_slots": ("filled", "Slots in use, summed over all steps."),
}
OUTCOMES = ("finished", "failed")


class EngineMetrics:
    """What Ray's dashboard shows of one engine."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._counters = {
            field: metrics.Counter(name, description=words)
            for name, (field, words) in COUNTERS.items()
        }
        self._requests = metrics.Counter(
            "slimwhisper_requests", description="Requests that ended.", tag_keys=("outcome",)
        )
        self._gauges = {
            name: metrics.Gauge(f"slimwhisper_{name}", description=words)
            for name, words in (
                ("in_flight", "Requests in flight."),
                ("slots", "Slots of an engine."),
                ("speed", "Seconds of audio per second of the engines' work."),
                ("batch_fill", "Slots in use, mean over all steps."),
            )
        }

    def update(self, counts: FeedCounts, in_flight: int) -> None:
        """Record what has been counted since the last call."""
        for field, counter in self._counters.items():
            if more := self._more(field, getattr(counts, field)):
                counter.inc(more)
        for outcome in OUTCOMES:
            if more := self._more(outcome, getattr(counts, outcome)):
                self._requests.inc(more, tags={"outcome": outcome})
        self._gauges["in_flight"].set(in_flight)
        self._gauges["slots"].set(counts.slots)
        if counts.steps and counts.busy_seconds:
            self._gauges["speed"].set(counts.audio_seconds / counts.busy_seconds)
            self._gauges["batch_fill"].set(counts.filled / counts.steps)

    def _more(self, field: str, total: float) -> float:
        before = self._seen.get(field, 0.0)
        self._seen[field] = total
        return total - before
