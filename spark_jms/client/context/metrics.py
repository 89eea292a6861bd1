"""What a client program's producers and consumers have done, and what a context tells of itself.

`OpenClients` counts, `CLIENT_METRICS` says which figure of the statistics each metric is, and `ContextCollector` gives them to
Prometheus: one series for each destination, not for each producer or consumer: they come and go, and are too many. What closed ones
have counted stays. `reset_statistics()` of a producer or consumer takes its part away, as a restart of the program would.

Features: M5, T7, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from spark_jms.client.messages.message import OwningProcess
from spark_jms.client.receiving.consumer import Consumer
from spark_jms.client.sending.producer import Producer
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.messages.paging import NOTHING_BUFFERED, BufferStatistics
from spark_jms.log.upkeep.health import BackgroundFailure

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object  # applications without prometheus_client import this module too

_LABELS = ("destination",)
_TEMPORARY = "(temporary)"


@dataclass(frozen=True)
class ContextStatistics:
    """What a context tells of itself. `…_high` and `…_total`: the most that were open at once, and how many were opened, since the
    context was opened or its statistics were reset."""

    producers: int
    consumers: int
    destinations: tuple[str, ...]  # those under this context's housekeeping
    failures: tuple[BackgroundFailure, ...] = ()  # background work that fails now
    failed_attempts: int = 0  # of background work, since the context was opened
    producers_high: int = 0
    consumers_high: int = 0
    producers_total: int = 0
    consumers_total: int = 0
    listener_failures: int = 0  # completion listeners that raised
    buffer: BufferStatistics = NOTHING_BUFFERED  # messages that wait, in memory and paged

    @property
    def healthy(self) -> bool:
        """No background work fails now."""
        return not self.failures


class Counting(Protocol):
    """A producer or a consumer."""

    @property
    def destination(self) -> str: ...

    def statistics(self) -> Any: ...


C = TypeVar("C", bound=Counting)


class CountedField(NamedTuple):
    """A count in the statistics of the producers, or consumers, of one destination, as `counted_as` names it."""

    destination: str
    field: str


class OpenClients(Generic[C]):
    """The producers, or the consumers, of one context: those that are open, and what the closed ones have counted. Thread-safe.
    `counts` names the fields of their statistics that only grow; these are kept when one closes."""

    def __init__(self, counts: Sequence[str]) -> None:
        self._lock, self._counts = threading.Lock(), tuple(counts)
        self._open: list[C] = []
        self._closed: Counter[CountedField] = Counter()
        self.high = self.total = 0

    def add(self, one: C) -> C:
        with self._lock:
            self._open.append(one)
            self.high, self.total = max(self.high, len(self._open)), self.total + 1
        return one

    def remove(self, one: C) -> None:
        """It is closed, and counts no more."""
        with self._lock:
            if one in self._open:
                self._open.remove(one)
                self._closed.update(self._of(one))

    def all(self) -> list[C]:
        with self._lock:
            return list(self._open)

    def counted(self) -> Counter[CountedField]:
        """Of the open ones and of those that were closed."""
        with self._lock:
            found = Counter(self._closed)
            for one in self._open:
                found.update(self._of(one))
        return found

    def reset(self) -> None:
        """The high mark begins with what is open now, and the total at 0."""
        with self._lock:
            self.high, self.total = len(self._open), 0

    def __len__(self) -> int:
        return len(self._open)

    def _of(self, one: C) -> dict[CountedField, int]:
        now = one.statistics()
        return {CountedField(counted_as(one.destination), name): getattr(now, name) for name in self._counts}


def counted_as(destination: str) -> str:
    """All temporary destinations are counted together: they come and go, and their names are never used again."""
    return _TEMPORARY if is_temporary(destination) else destination


# -- which figure of the statistics each metric is ---------------------------------------------------------------------
class ClientMetric(NamedTuple):
    """`field` is that of ProducerStatistics, ConsumerStatistics, ContextStatistics or its BufferStatistics."""

    field: str
    name: str
    help: str


PRODUCER_COUNTERS = (
    ClientMetric("messages", "jmsq_client_sent_messages_total", "Messages sent by the producers of this program."),
    ClientMetric("bytes", "jmsq_client_sent_bytes_total", "Bytes of the bodies and properties of sent messages."),
    ClientMetric("commits", "jmsq_client_commits_total", "Commits with messages of the producers of this program."),
    ClientMetric(
        "duplicates",
        "jmsq_client_duplicate_sends_total",
        "Calls whose transaction, and messages whose number, was in the log already: they were not sent again.",
    ),
    ClientMetric("one_way", "jmsq_client_one_way_messages_total", "Messages sent one-way that are in the table."),
    ClientMetric(
        "deleted",
        "jmsq_client_one_way_deleted_messages_total",
        "Messages sent one-way that are not in the table and will not be.",
    ),
)
CONSUMER_COUNTERS = (
    ClientMetric("received", "jmsq_client_received_messages_total", "Messages received by consumers."),
    ClientMetric(
        "bytes", "jmsq_client_received_bytes_total", "Bytes of the bodies and properties of received messages."
    ),
    ClientMetric("redelivered", "jmsq_client_redelivered_messages_total", "Received messages with JMSRedelivered set."),
    ClientMetric(
        "acknowledged", "jmsq_client_acknowledged_messages_total", "Messages whose acknowledgement is stored."
    ),
    ClientMetric("returned", "jmsq_client_returned_messages_total", "Messages returned to their destination."),
    ClientMetric(
        "expired",
        "jmsq_client_expired_messages_total",
        "Messages that expired between their claim and their delivery.",
    ),
    ClientMetric("set_aside", "jmsq_client_set_aside_messages_total", "Messages set aside: they cannot be decoded."),
    ClientMetric(
        "listener_failures", "jmsq_client_listener_failures_total", "Calls of message listeners that raised an error."
    ),
)
PRODUCER_GAUGES = (
    ClientMetric(
        "outstanding", "jmsq_client_outstanding_sends", "Asynchronous and one-way sends that are not complete."
    ),
)
CONSUMER_GAUGES = (
    ClientMetric("prefetched", "jmsq_client_prefetched_messages", "Messages claimed and not yet delivered."),
    ClientMetric(
        "unacknowledged", "jmsq_client_unacknowledged_messages", "Messages delivered and not yet acknowledged."
    ),
    ClientMetric("returning", "jmsq_client_returning_messages", "Messages released whose release is not yet stored."),
)
CONTEXT_COUNTERS = (
    ClientMetric(
        "failed_attempts",
        "jmsq_client_background_failed_attempts_total",
        "Failed attempts of this program's background work, later successes included.",
    ),
    ClientMetric(
        "listener_failures",
        "jmsq_client_completion_listener_failures_total",
        "Calls of completion listeners that raised an error.",
    ),
)
BUFFER_GAUGES = (
    ClientMetric("memory_bytes", "jmsq_client_buffer_memory_bytes", "Bytes of waiting messages that are in memory."),
    ClientMetric("paged_bytes", "jmsq_client_buffer_paged_bytes", "Bytes of waiting messages that are paged to files."),
    ClientMetric("paged_messages", "jmsq_client_buffer_paged_messages", "Waiting messages that are paged to files."),
)
BUFFER_COUNTERS = (
    ClientMetric(
        "paged_messages_total", "jmsq_client_buffer_paged_messages_total", "Messages that were paged to files."
    ),
    ClientMetric(
        "failures", "jmsq_client_buffer_paging_failures_total", "Pages that the paging directory did not take."
    ),
)
PRODUCERS = ClientMetric("producers", "jmsq_client_producers", "Open producers.")
CONSUMERS = ClientMetric("consumers", "jmsq_client_consumers", "Open consumers.")
SLOWED = ClientMetric("flow", "jmsq_client_slowed_producers", "Open producers that flow control slows down now.")
FAILURES = ClientMetric(
    "failures", "jmsq_client_background_failures", "Background work of this program that fails now."
)
CLIENT_METRICS = (
    PRODUCERS,
    *PRODUCER_COUNTERS,
    *PRODUCER_GAUGES,
    SLOWED,
    CONSUMERS,
    *CONSUMER_COUNTERS,
    *CONSUMER_GAUGES,
    FAILURES,
    *CONTEXT_COUNTERS,
    *BUFFER_GAUGES,
    *BUFFER_COUNTERS,
)
PRODUCER_COUNTS = tuple(metric.field for metric in PRODUCER_COUNTERS)
CONSUMER_COUNTS = tuple(metric.field for metric in CONSUMER_COUNTERS)


# -- for Prometheus ----------------------------------------------------------------------------------------------------
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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self._process.is_parent:
            return
        yield from _counters(PRODUCER_COUNTERS, self._producers)
        yield from _counters(CONSUMER_COUNTERS, self._consumers)
        sending = [(counted_as(one.destination), one.statistics()) for one in self._producers.all()]
        yield _gauge(PRODUCERS, ((destination, 1) for destination, _ in sending))
        yield _gauge(SLOWED, ((destination, one.flow.limit is not None) for destination, one in sending))
        for metric in PRODUCER_GAUGES:
            yield _gauge(metric, ((destination, getattr(one, metric.field)) for destination, one in sending))
        receiving = [(counted_as(one.destination), one.statistics()) for one in self._consumers.all()]
        yield _gauge(CONSUMERS, ((destination, 1) for destination, _ in receiving))
        for metric in CONSUMER_GAUGES:
            yield _gauge(metric, ((destination, getattr(one, metric.field)) for destination, one in receiving))
        now = self._statistics()
        yield GaugeMetricFamily(FAILURES.name, FAILURES.help, value=len(now.failures))
        for metric in CONTEXT_COUNTERS:
            yield CounterMetricFamily(metric.name, metric.help, value=getattr(now, metric.field))
        for metric in BUFFER_GAUGES:
            yield GaugeMetricFamily(metric.name, metric.help, value=getattr(now.buffer, metric.field))
        for metric in BUFFER_COUNTERS:
            yield CounterMetricFamily(metric.name, metric.help, value=getattr(now.buffer, metric.field))


def _counters(
    metrics: Iterable[ClientMetric], clients: OpenClients[Producer] | OpenClients[Consumer]
) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    counted = clients.counted()
    destinations = sorted({key.destination for key in counted})
    for metric in metrics:
        family = CounterMetricFamily(metric.name, metric.help, labels=_LABELS)
        for destination in destinations:
            family.add_metric([destination], counted[CountedField(destination, metric.field)])
        yield family


def _gauge(metric: ClientMetric, values: Iterable[tuple[str, float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    sums: dict[str, float] = {}
    for destination, value in values:
        sums[destination] = sums.get(destination, 0) + value
    family = GaugeMetricFamily(metric.name, metric.help, labels=_LABELS)
    for destination, value in sorted(sums.items()):
        family.add_metric([destination], value)
    return family
