"""Metrics for Prometheus, served at /metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from slimwhisper.app.service.service import Service

OUTCOMES = ("finished", "failed", "cancelled", "refused")  # fields of `Counts`


class ServiceCollector(Collector):
    """Reads a service's counts at every scrape."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """All metrics: requests, live streams, the engines' work, their memory."""
        yield from self._requests()
        yield from self._streams()
        yield from self._work()
        engines = self.service.engines
        yield GaugeMetricFamily("slimwhisper_slots", "Slots of an engine.", value=engines.slots)
        yield GaugeMetricFamily(
            "slimwhisper_cache_bytes", "Bytes allocated for caches.", value=engines.cache_bytes()
        )

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "slimwhisper_requests", "Requests that ended, by outcome.", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            requests.add_metric([outcome], getattr(self.service.counts, outcome))
        yield requests
        in_flight = GaugeMetricFamily(
            "slimwhisper_in_flight", "Requests in flight, by state.", labels=["state"]
        )
        for state, count in self.service.states().items():
            in_flight.add_metric([state], count)
        yield in_flight

    def _streams(self) -> Iterator[Metric]:
        counts = self.service.counts
        yield GaugeMetricFamily(
            "slimwhisper_streams",
            "Live streams that are open.",
            value=len(self.service.streams.open),
        )
        yield CounterMetricFamily(
            "slimwhisper_updates", "Updates of live streams.", value=counts.updates
        )
        yield CounterMetricFamily(
            "slimwhisper_merged_updates",
            "Updates of live streams that fell due while another ran, and became part of the next.",
            value=counts.merged,
        )
        latency = counts.commit_latency
        yield HistogramMetricFamily(
            "slimwhisper_commit_latency_seconds",
            "Seconds from the arrival of the newest audio that an update knew until the text that "
            "it committed was sent.",
            buckets=list(latency.buckets()),
            sum_value=latency.total,
        )

    def _work(self) -> Iterator[Metric]:
        counts = self.service.counts
        yield CounterMetricFamily(
            "slimwhisper_audio_seconds", "Seconds of audio transcribed.", value=counts.audio_seconds
        )
        yield CounterMetricFamily(
            "slimwhisper_busy_seconds", "Seconds the engines worked.", value=counts.busy_seconds
        )
        speed = counts.audio_seconds / counts.busy_seconds if counts.busy_seconds else 0.0
        yield GaugeMetricFamily(
            "slimwhisper_speed", "Seconds of audio per second of the engines' work.", value=speed
        )
        yield CounterMetricFamily(
            "slimwhisper_steps", "Engine steps; a step advances every slot in use.", counts.steps
        )
        yield CounterMetricFamily(
            "slimwhisper_filled_slots", "Slots in use, summed over all steps.", counts.filled
        )
        fill = counts.filled / counts.steps if counts.steps else 0.0
        yield GaugeMetricFamily(
            "slimwhisper_batch_fill", "Slots in use, mean over all steps.", value=fill
        )


def metrics_text(service: Service) -> bytes:
    """One service's metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
