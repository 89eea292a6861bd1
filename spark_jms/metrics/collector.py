"""The figures of a domain as a collector of prometheus_client.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jms.admin.domain_sample import DomainSample
from spark_jms.metrics.declared import DOMAIN_METRICS

log = logging.getLogger("spark_jms")
DEFAULT_EVERY_S = 10.0
WAIT_S = 9.0  # a little less than Prometheus waits for a scrape


class DomainCollector(Collector):
    """`take` gives a sample, at most every `every_s`; scrapes in between have the same one. One sample is taken at a time, in a thread
    of its own. A scrape that has none within `wait_s` (None: it waits), or whose sample fails, has `jmsq_domain_up` 0 alone: it
    never fails. A sample that takes longer is of the next scrape, if that comes within `every_s` of its beginning."""

    def __init__(
        self,
        take: Callable[[], DomainSample],
        every_s: float = DEFAULT_EVERY_S,
        wait_s: float | None = WAIT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._take, self._every_s, self._wait_s, self._monotonic_s = take, every_s, wait_s, monotonic_s
        self._lock = threading.Lock()
        self._newest: Future[_TimedSample] | None = None
        self._began_s = 0.0

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering takes no sample."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape, as Prometheus's client library asks for them."""
        found = self._sample()
        yield GaugeMetricFamily("jmsq_domain_up", "1 while the domain can be sampled.", value=found is not None)
        if found is None:
            return
        sample = found.sample
        yield GaugeMetricFamily(
            "jmsq_sample_timestamp_seconds", "When the figures were sampled.", value=sample.time_ms / 1000
        )
        yield GaugeMetricFamily("jmsq_sample_duration_seconds", "How long that took.", value=found.took_s)
        for metric in DOMAIN_METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for series in metric.values(sample):
                family.add_metric(series.labels, float(series.value))
            yield family

    def _sample(self) -> _TimedSample | None:
        try:
            return self._current().result(self._wait_s)
        except Exception as error:  # noqa: BLE001 - jmsq_domain_up and the log show it
            late = isinstance(error, FutureTimeoutError) and not error.args
            why = "it takes longer than a scrape waits" if late else str(error)
            log.warning("the domain could not be sampled: %s: %s", type(error).__name__, why)
            return None

    def _current(self) -> Future[_TimedSample]:
        """The newest sample, or the one that is being taken."""
        with self._lock:
            newest, now_s = self._newest, self._monotonic_s()
            if newest is not None and not newest.done():
                return newest
            if newest is None or newest.exception() is not None or now_s - self._began_s >= self._every_s:
                newest, self._began_s = Future(), now_s
                threading.Thread(target=self._run, args=(newest, now_s), name="jmsq-sample", daemon=True).start()
                self._newest = newest
            return newest

    def _run(self, into: Future[_TimedSample], began_s: float) -> None:
        try:
            sample = self._take()
            into.set_result(_TimedSample(sample, self._monotonic_s() - began_s))
        except BaseException as error:  # noqa: BLE001 - the scrapes that wait for it name it
            into.set_exception(error)


@dataclass(frozen=True)
class _TimedSample:
    sample: DomainSample
    took_s: float
