"""The metrics for Prometheus, served at /metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slimwhisper.app.service.service import Service
from slimwhisper.metrics import HELP

# fields of `RequestCounts` that are one metric; each of the others is one
OUTCOMES = ("finished", "failed", "cancelled", "refused")


class ServiceCollector(Collector):
    """Reads a service's counts at every scrape."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """All metrics: requests, live streams, the engines' work, their memory."""
        counts, engines = self.service.counts, self.service.engines
        values = asdict(counts)
        outcomes = {outcome: values.pop(outcome) for outcome in OUTCOMES}
        yield _labelled(CounterMetricFamily, "requests", "outcome", outcomes)
        yield _labelled(GaugeMetricFamily, "in_flight", "state", self.service.jobs.states())
        for metric in counts.commit_latency.collect():
            # the creation time is of no use: it is that of this process
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
        yield from (_single(CounterMetricFamily, name, value) for name, value in values.items())
        gauges = {
            "streams": len(self.service.streams.open),
            "speed": counts.audio_seconds / (counts.busy_seconds or inf),
            "batch_fill": counts.filled_slots / (counts.steps or inf),
            "slots": engines.slots,
            "cache_bytes": engines.cache_bytes(),
            "text_bytes": engines.text_bytes(),
        }
        yield from (_single(GaugeMetricFamily, name, value) for name, value in gauges.items())


Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


def _single(family: Family, name: str, value: float) -> Metric:
    name = f"slimwhisper_{name}"
    return family(name, HELP[name], value=value)


def _labelled(family: Family, name: str, label: str, values: Mapping[str, float]) -> Metric:
    name = f"slimwhisper_{name}"
    metric = family(name, HELP[name], labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric
