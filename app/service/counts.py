"""The counters behind `/metrics`."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from slimwhisper.metrics import HELP

if TYPE_CHECKING:
    from prometheus_client import Histogram

LATENCIES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)  # seconds
COMMIT_LATENCY = "slimwhisper_commit_latency_seconds"


@dataclass
class RequestCounts:
    """Counters; only the service's thread writes them, except `refused`."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    audio_seconds: float = 0.0  # of finished recordings
    busy_seconds: float = 0.0  # of engines
    steps: int = 0  # of engines
    filled_slots: int = 0  # slots in use, summed over the engines' steps
    preemptions: int = 0  # of texts
    updates: int = 0  # of live streams
    merged_updates: int = 0  # updates that became due while another update of the stream ran

    @cached_property
    def commit_latency(self) -> "Histogram":
        """Seconds from the arrival of the newest audio in an update to the event with its
        committed text. Needs prometheus_client, which only a server with streams has to have.
        """
        from prometheus_client import Histogram

        return Histogram(COMMIT_LATENCY, HELP[COMMIT_LATENCY], buckets=LATENCIES, registry=None)
