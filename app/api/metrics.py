"""What Prometheus scrapes at /metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slimwhisper.app.service.service import Service


class ServiceCollector(Collector):
    """Reads a service's counts when asked."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        service, counts = self.service, self.service.counts
        requests = CounterMetricFamily(
            "slimwhisper_requests", "Requests that ended, by outcome.", labels=["outcome"]
        )
        for outcome in ("finished", "failed", "cancelled", "refused"):
            requests.add_metric([outcome], getattr(counts, outcome))
        yield requests
        yield CounterMetricFamily(
            "slimwhisper_audio_seconds", "Audio transcribed.", value=counts.audio_seconds
        )
        yield CounterMetricFamily(
            "slimwhisper_busy_seconds", "Time the engine worked.", value=counts.busy_seconds
        )
        speed = counts.audio_seconds / counts.busy_seconds if counts.busy_seconds else 0.0
        yield GaugeMetricFamily(
            "slimwhisper_speed", "Audio a second of the engine's work, so far.", value=speed
        )
        waiting = GaugeMetricFamily(
            "slimwhisper_in_flight", "Requests now, by where they are.", labels=["state"]
        )
        for state, count in service.states().items():
            waiting.add_metric([state], count)
        yield waiting
        yield CounterMetricFamily(
            "slimwhisper_steps", "Steps of the engine, each with every slot in use.", counts.steps
        )
        yield CounterMetricFamily(
            "slimwhisper_filled_slots", "Slots in use, summed over the steps.", counts.filled
        )
        fill = counts.filled / counts.steps if counts.steps else 0.0
        yield GaugeMetricFamily(
            "slimwhisper_batch_fill", "Windows in slots, mean over the engine's steps.", value=fill
        )
        yield GaugeMetricFamily("slimwhisper_slots", "Slots of an engine.", value=service.slots)
        yield GaugeMetricFamily(
            "slimwhisper_cache_bytes", "Bytes that the caches hold.", value=service.cache_bytes()
        )


def metrics_text(service: Service) -> bytes:
    """The text format, of this service alone."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
