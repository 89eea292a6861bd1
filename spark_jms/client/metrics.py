"""What a client program's producers and consumers have done, as a collector of prometheus_client.

One series for each destination, not for each producer or consumer: they come and go, and are too many. What closed ones have
counted stays. `reset_statistics()` of a producer or consumer takes its part away, as a restart of the program would.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jms.client import metric_names as names
from spark_jms.client.closing import OwningProcess
from spark_jms.client.consumer import Consumer
from spark_jms.client.context_statistics import ContextStatistics
from spark_jms.client.open_clients import CountedField, OpenClients, counted_as
from spark_jms.client.producer import Producer

_LABELS = ("destination",)


class ContextCollector(Collector):
    """Made by `Context.metrics`. Two contexts of one process need a registry each: their series have the same names."""

    def __init__(
        self,
        statistics: Callable[[], ContextStatistics],
        producers: OpenClients[Producer],
        consumers: OpenClients[Consumer],
        process: OwningProcess,
    ) -> None:
        self._process, self._statistics, self._producers, self._consumers = process, statistics, producers, consumers

    def collect(self) -> Iterable[Metric]:
        """Reads memory alone: no store, no file. Nothing in a forked child: the context is its parent's, which shows it."""
        if self._process.is_parent:
            return
        yield from _counters(names.PRODUCER_COUNTERS, self._producers)
        yield from _counters(names.CONSUMER_COUNTERS, self._consumers)
        sending = [(counted_as(one.destination), one.statistics()) for one in self._producers.all()]
        yield _gauge(names.PRODUCERS, ((destination, 1) for destination, _ in sending))
        yield _gauge(names.SLOWED, ((destination, one.flow.limit is not None) for destination, one in sending))
        for metric in names.PRODUCER_GAUGES:
            yield _gauge(metric, ((destination, getattr(one, metric.field)) for destination, one in sending))
        receiving = [(counted_as(one.destination), one.statistics()) for one in self._consumers.all()]
        yield _gauge(names.CONSUMERS, ((destination, 1) for destination, _ in receiving))
        for metric in names.CONSUMER_GAUGES:
            yield _gauge(metric, ((destination, getattr(one, metric.field)) for destination, one in receiving))
        now = self._statistics()
        yield GaugeMetricFamily(names.FAILURES.name, names.FAILURES.help, value=len(now.failures))
        for metric in names.CONTEXT_COUNTERS:
            yield CounterMetricFamily(metric.name, metric.help, value=getattr(now, metric.field))
        for metric in names.BUFFER_GAUGES:
            yield GaugeMetricFamily(metric.name, metric.help, value=getattr(now.buffer, metric.field))
        for metric in names.BUFFER_COUNTERS:
            yield CounterMetricFamily(metric.name, metric.help, value=getattr(now.buffer, metric.field))


def _counters(
    metrics: Iterable[names.ClientMetric], clients: OpenClients[Producer] | OpenClients[Consumer]
) -> Iterator[Metric]:
    counted = clients.counted()
    destinations = sorted({key.destination for key in counted})
    for metric in metrics:
        family = CounterMetricFamily(metric.name, metric.help, labels=_LABELS)
        for destination in destinations:
            family.add_metric([destination], counted[CountedField(destination, metric.field)])
        yield family


def _gauge(metric: names.ClientMetric, values: Iterable[tuple[str, float]]) -> Metric:
    sums: dict[str, float] = {}
    for destination, value in values:
        sums[destination] = sums.get(destination, 0) + value
    family = GaugeMetricFamily(metric.name, metric.help, labels=_LABELS)
    for destination, value in sorted(sums.items()):
        family.add_metric([destination], value)
    return family
