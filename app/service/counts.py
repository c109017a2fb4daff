"""The counters behind `/metrics`."""

from dataclasses import dataclass, field

from prometheus_client import Histogram

from slimwhisper.metrics import HELP

LATENCIES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)  # seconds
COMMIT_LATENCY = "slimwhisper_commit_latency_seconds"


def _commit_latency() -> Histogram:
    return Histogram(COMMIT_LATENCY, HELP[COMMIT_LATENCY], buckets=LATENCIES, registry=None)


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
    preemptions: int = 0  # of texts
    updates: int = 0  # of live streams
    merged: int = 0  # updates of streams that were due while another ran
    # seconds from when the newest audio that an update knew had come until the text that it
    # committed was told
    commit_latency: Histogram = field(default_factory=_commit_latency)
