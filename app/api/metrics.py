"""Metrics for Prometheus, served at /metrics."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slimwhisper.app.service.service import Service
from slimwhisper.metrics import HELP

OUTCOMES = ("finished", "failed", "cancelled", "refused")  # fields of `Counts`


class ServiceCollector(Collector):
    """Reads a service's counts at every scrape."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """All metrics: requests, live streams, the engines' work, their memory."""
        counts, engines = self.service.counts, self.service.engines
        outcomes = {outcome: getattr(counts, outcome) for outcome in OUTCOMES}
        yield _labelled(CounterMetricFamily, "requests", "outcome", outcomes)
        yield _labelled(GaugeMetricFamily, "in_flight", "state", self.service.states())
        yield _one(GaugeMetricFamily, "streams", len(self.service.streams.open))
        yield _one(CounterMetricFamily, "updates", counts.updates)
        yield _one(CounterMetricFamily, "merged_updates", counts.merged)
        for metric in counts.commit_latency.collect():
            # when it was created is of no use, as only this process knows it
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
        yield _one(CounterMetricFamily, "audio_seconds", counts.audio_seconds)
        yield _one(CounterMetricFamily, "busy_seconds", counts.busy_seconds)
        speed = counts.audio_seconds / counts.busy_seconds if counts.busy_seconds else 0.0
        yield _one(GaugeMetricFamily, "speed", speed)
        yield _one(CounterMetricFamily, "steps", counts.steps)
        yield _one(CounterMetricFamily, "filled_slots", counts.filled)
        fill = counts.filled / counts.steps if counts.steps else 0.0
        yield _one(GaugeMetricFamily, "batch_fill", fill)
        yield _one(GaugeMetricFamily, "slots", engines.slots)
        yield _one(GaugeMetricFamily, "cache_bytes", engines.cache_bytes())
        yield _one(GaugeMetricFamily, "text_bytes", engines.text_bytes())
        yield _one(CounterMetricFamily, "preemptions", counts.preemptions)


Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


def _one(family: Family, name: str, value: float) -> Metric:
    name = f"slimwhisper_{name}"
    return family(name, HELP[name], value=value)


def _labelled(family: Family, name: str, label: str, values: Mapping[str, float]) -> Metric:
    name = f"slimwhisper_{name}"
    metric = family(name, HELP[name], labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def metrics_text(service: Service) -> bytes:
    """One service's metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
