"""The producers of a context: those of applications, of transacted sessions, of requests and of replies.

Features: C11, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from spark_jms.client.asynchronous_send import AsynchronousSender
from spark_jms.client.choices import Choices
from spark_jms.client.context_destinations import ContextDestinations
from spark_jms.client.durations import seconds_of
from spark_jms.client.flow import Flows
from spark_jms.client.metric_names import PRODUCER_COUNTS
from spark_jms.client.numbering import ProducerNumbers
from spark_jms.client.one_way import OneWaySends
from spark_jms.client.open_clients import OpenClients
from spark_jms.client.producer import DEFAULT_SEND_TIMEOUT_S, Producer
from spark_jms.client.shared_send import SharedSender
from spark_jms.client.transacted_producer import Collect, TransactedProducer
from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import is_temporary
from spark_jms.errors import OptionError
from spark_jms.log.domain import Domain
from spark_jms.log.message_buffer import MessageBuffer
from spark_jms.settings.duration import DurationLike


class ContextProducers:
    """Thread-safe. The producers of one destination share their sender. `check` raises ClosedError when the context is
    closed."""

    def __init__(
        self,
        domain: Domain,
        destinations: ContextDestinations,
        choices: Choices,
        asynchronous: AsynchronousSender,
        buffer: MessageBuffer,
        check: Callable[[], None],
    ) -> None:
        self._domain, self._destinations, self._choices = domain, destinations, choices
        self._asynchronous, self._buffer, self._check = asynchronous, buffer, check
        self._flows = Flows(domain, choices.factory)
        self._lock = threading.RLock()
        self._shared: dict[str, SharedSender] = {}
        self.open: OpenClients[Producer] = OpenClients(PRODUCER_COUNTS)

    def create(
        self,
        address: DestinationAddress,
        send_timeout_s: float,
        one_way: OneWaySends | None = None,
        threshold: int | None = None,
        producer_id: str | None = None,
        kind: Callable[..., Producer] = Producer,
    ) -> Producer:
        name = address.destination
        if is_temporary(name) and producer_id is not None:
            raise OptionError(f"{name} ends with its context, so producer_id has no purpose there: leave it out")
        if is_temporary(name) and name not in self._domain.temporary.own:
            return self.open.add(self._of_temporary(name, send_timeout_s, threshold, kind))
        log = self._destinations.use(name)
        address.members(log.snapshot.destination)
        with self._lock:
            shared = self._shared.setdefault(name, SharedSender(log))
        producer = kind(
            log,
            shared,
            self._asynchronous,
            self._check,
            self._destinations.sent,
            self.open.remove,
            send_timeout_s,
            self._choices.balancing(address.server),
            one_way,
            self._flows.of(log),
            threshold,
            None if producer_id is None else ProducerNumbers(log, producer_id),
        )
        return self.open.add(producer)

    def create_transacted(
        self, destination: str, send_timeout: DurationLike | None, threshold: int | None, collect: Collect
    ) -> TransactedProducer:
        """Of a transacted session, which collects its messages."""
        self._check()
        timeout_s = DEFAULT_SEND_TIMEOUT_S if send_timeout is None else seconds_of("send_timeout", send_timeout)
        made = self.create(
            DestinationAddress.parse(destination),
            timeout_s,
            threshold=self._choices.threshold(threshold),
            kind=partial(TransactedProducer, collect, self._buffer),
        )
        assert isinstance(made, TransactedProducer)
        return made

    def create_for_requests(self, destination: str) -> Producer:
        """Each of its sends waits: a request needs its message's id, and its errors."""
        address, threshold = DestinationAddress.parse(destination), self._choices.threshold(None)
        return self.create(address, DEFAULT_SEND_TIMEOUT_S, threshold=threshold)

    def create_for_replies(self, destination: str) -> Producer:
        """Of a destination to which this context perhaps sends once: nothing of it is kept here."""
        if not is_temporary(destination):
            return self.create_for_requests(destination)
        return self._of_temporary(destination, DEFAULT_SEND_TIMEOUT_S, self._choices.threshold(None))

    def forget(self, destination: str) -> None:
        """Before a temporary destination is deleted."""
        with self._lock:
            self._shared.pop(destination, None)

    def _of_temporary(
        self,
        destination: str,
        send_timeout_s: float,
        threshold: int | None,
        kind: Callable[..., Producer] = Producer,
    ) -> Producer:
        self._check()
        log = self._domain.temporary.log(destination)
        log.verify()
        return kind(
            log,
            SharedSender(log),
            self._asynchronous,
            self._check,
            lambda *_: None,
            self.open.remove,
            send_timeout_s,
            threshold=threshold,
        )
