"""The producers and consumers of a context: opened, run by its background thread, and closed.

The producers are those of applications, of transacted sessions, of requests and of replies. What a connection's factory and home
server decide, `ConnectionDefaults` says: the members of its senders and receivers, the pipeline of its consumers, and whether its
senders wait.

Features: C11, D2, D3, T9, T11, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.records.subscriptions import subscription_request
from spark_jms.claims.upkeep.housekeeping import BackgroundThread
from spark_jms.client.context.destinations import ContextDestinations
from spark_jms.client.context.metrics import CONSUMER_COUNTS, PRODUCER_COUNTS, OpenClients
from spark_jms.client.messages.message import ExceptionListener, Message, seconds_of
from spark_jms.client.receiving.browser import Pinning
from spark_jms.client.receiving.consumer import (
    Consumer,
    GivenConsumer,
    ListenerThread,
    check_listeners,
    check_prefetch,
    named_members,
    starting_position_option,
)
from spark_jms.client.receiving.pipeline import Pipeline
from spark_jms.client.receiving.receiver import AcknowledgeMode, Receiver, Transacted
from spark_jms.client.sending.asynchronous_send import AsynchronousSender
from spark_jms.client.sending.flow_control import Flows
from spark_jms.client.sending.producer import Producer
from spark_jms.client.sending.producers import OneWaySends, ProducerNumbers
from spark_jms.client.sending.shared_send import SharedSender
from spark_jms.client.transactions.session import (
    SendingSide,
    SessionSide,
    TransactedConsumer,
    TransactedProducer,
)
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.destinations.routing import Balancing, DestinationAddress, balancing_of
from spark_jms.core.selector import Selector
from spark_jms.core.transactions.producers import OneWayRule
from spark_jms.errors import OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import home_server
from spark_jms.log.messages.paging import MessageBuffer
from spark_jms.log.tables.delta_log import DeltaLog, LogWatch
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.types import DurationLike


@dataclass(frozen=True)
class ConnectionDefaults:
    """What the connection's factory and home server decide. `home` None: the connection prefers no server."""

    factory: ConnectionFactory
    home: str | None

    @property
    def pinning(self) -> Pinning:
        return Pinning(self.factory.pin_receivers, self.home if self.factory.server_affinity_enabled else None)

    def balancing(self, server: str | None) -> Balancing:
        """Of a new producer; `server` when its address names one."""
        return balancing_of(self.factory, server, self.home, secrets.token_hex(8))

    def threshold(self, given: int | None) -> int | None:
        """From how many bytes on a new producer compresses a body; None: never. Raises OptionError."""
        if given is not None and (type(given) is not int or given < 0):
            raise OptionError(f"compression_threshold is {given!r}, but must be a number of bytes, 0 or more")
        return self.factory.default_compression_threshold if given is None else given

    def send_timeout_s(self, given: DurationLike | None) -> float:
        """Of a new producer. Raises OptionError."""
        return self.factory.send_timeout_ms / 1000 if given is None else seconds_of("send_timeout", given)

    def transaction_timeout_s(self, given: DurationLike | None, *, database: bool) -> float:
        """Of a new transacted session, with a last resource or without. Raises OptionError."""
        if given is None and database:
            return self.factory.database_transaction_timeout_ms / 1000
        if given is None:
            return self.factory.transaction_timeout_ms / 1000
        return seconds_of("timeout", given)

    def pipeline(self, prefetch: int | None, buffer: MessageBuffer, *, listener: bool, topic: bool) -> Pipeline:
        """Of a new consumer; `prefetch` None: as the connection factory says."""
        maximum = self.factory.pipeline(listener=listener, topic=topic) if prefetch is None else prefetch
        return Pipeline(maximum, self.factory.max_message_bytes, buffer)

    def one_way(self, address: DestinationAddress, listener: ExceptionListener | None) -> OneWaySends | None:
        """Of a new producer; None: each of its sends waits."""
        if not self.factory.sends_one_way:
            return None
        return OneWaySends(OneWayRule(self.factory, address, self.home), listener)


def choices_of(domain: Domain, factory: str | ConnectionFactory | None, server: str | None) -> ConnectionDefaults:
    """Raises DomainError when the domain has no connection factory or server of that name, OptionError for anything else."""
    home = home_server(domain.servers, server)
    if factory is not None and not isinstance(factory, str | ConnectionFactory):
        raise OptionError(f"connection_factory is {factory!r}, but must be a name or a ConnectionFactory")
    made = domain.connection_factories.get(factory) if isinstance(factory, str) else factory or ConnectionFactory()
    return ConnectionDefaults(made, home)


class ContextProducers:
    """Opens producers. Thread-safe. Those of one destination share their sender. `check` raises ClosedError when the context is
    closed."""

    def __init__(
        self,
        domain: Domain,
        destinations: ContextDestinations,
        choices: ConnectionDefaults,
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
            self._flows.of(log, address.server),
            threshold,
            None if producer_id is None else ProducerNumbers(log, producer_id),
            self._choices.factory.default_unit_of_order,
        )
        return self.open.add(producer)

    def create_transacted(
        self, destination: str, send_timeout: DurationLike | None, threshold: int | None, side: SendingSide
    ) -> TransactedProducer:
        """Of a transacted session, which collects its messages."""
        self._check()
        made = self.create(
            DestinationAddress.parse(destination),
            self._choices.send_timeout_s(send_timeout),
            threshold=self._choices.threshold(threshold),
            kind=partial(TransactedProducer, side, self._buffer),
        )
        assert isinstance(made, TransactedProducer)
        return made

    def create_for_requests(self, destination: str) -> Producer:
        """Each of its sends waits: a request needs its message's id, and its errors."""
        address, threshold = DestinationAddress.parse(destination), self._choices.threshold(None)
        return self.create(address, self._choices.send_timeout_s(None), threshold=threshold)

    def create_for_replies(self, destination: str) -> Producer:
        """Of a destination to which this context perhaps sends once: nothing of it is kept here."""
        if not is_temporary(destination):
            return self.create_for_requests(destination)
        return self._of_temporary(destination, self._choices.send_timeout_s(None), self._choices.threshold(None))

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
            unit=self._choices.factory.default_unit_of_order,
        )


class ContextConsumers:
    """Opens consumers. Thread-safe. `reply` replies to a message; `check` raises ClosedError when the context is closed."""

    def __init__(
        self,
        domain: Domain,
        destinations: ContextDestinations,
        choices: ConnectionDefaults,
        buffer: MessageBuffer,
        background: BackgroundThread,
        reply: Callable[[Message, Mapping[str, Any]], Message],
        check: Callable[[], None],
    ) -> None:
        self._domain, self._destinations, self._choices = domain, destinations, choices
        self._buffer, self._background = buffer, background
        self._reply, self._check = reply, check
        self._watch = LogWatch()
        self.open: OpenClients[Consumer] = OpenClients(CONSUMER_COUNTS)

    def create(
        self, given: GivenConsumer, mode: AcknowledgeMode | Transacted, side: SessionSide | None = None
    ) -> Consumer:
        """`side`: of the session that it belongs to."""
        address = DestinationAddress.parse(given.destination)
        destination = address.destination
        log = self._destinations.use(destination)
        check_prefetch(given.prefetch)
        check_listeners(given.listener, given.exception_listener)
        wanted = Selector.parse(given.selector)
        settings = ConsumerSettings(wanted, False, given.fail_on_data_loss, members=named_members(log, given.members))
        store = self._destinations.store_of(destination)
        settings = self._choices.pinning.receiver(settings, store, log, address, given.pin)
        request = subscription_request(
            log,
            self._destinations.kept(log, given.subscription),
            starting_position_option(given.starting_position),
            wanted,
            durable=given.durable,
            sharing=given.sharing,
            server=address.server_in(log.snapshot.destination),
            home=self._choices.pinning.home,
            members=settings.members,
        )
        consumer_name = f"client-{secrets.token_hex(6)}"
        subscriber = open_subscriber(self._domain, store, destination, request, consumer_name, settings)
        if settings.pinned:
            _attach(subscriber)
        bell, check = threading.Event(), partial(self._check_consumer, consumer_name)
        listens, topic = given.listener is not None, log.snapshot.destination.is_topic
        pipeline = self._choices.pipeline(given.prefetch, self._buffer, listener=listens, topic=topic)
        reply = self._reply if side is None else side.reply
        receiver = Receiver(subscriber, mode, pipeline, check, bell, reply)
        source = receiver if side is None else side.join(receiver)
        thread = None
        if given.listener is not None:
            thread = ListenerThread(source, given.listener, given.exception_listener)
        closed = partial(self._ended, receiver, bell)
        if side is None:
            return self._started(log, receiver, thread, bell, Consumer(receiver, thread, closed))
        return self._started(log, receiver, thread, bell, TransactedConsumer(side.defers, receiver, thread, closed))

    def create_transacted(self, given: GivenConsumer, side: SessionSide) -> TransactedConsumer:
        made = self.create(given, "transacted", side)
        assert isinstance(made, TransactedConsumer)
        return made

    def stop_watching(self) -> None:
        """When the context is closed: news of the destinations wake no receiver any more."""
        self._watch.close()

    def _started(
        self,
        log: DeltaLog,
        receiver: Receiver,
        thread: ListenerThread | None,
        bell: threading.Event,
        consumer: Consumer,
    ) -> Consumer:
        receiver.watched = self._watch.add(log, bell.set)
        self.open.add(consumer)
        self._background.add_consumer(
            receiver.name,
            receiver.flush_outbox,
            receiver.make_room,
            receiver.flush_life_cycle,
            write_overdue=receiver.write_overdue,
        )
        self._destinations.publish_usage(receiver.destination)
        if thread is not None:
            thread.start()
        return consumer

    def _ended(self, receiver: Receiver, bell: threading.Event, consumer: Consumer) -> None:
        self._watch.remove(bell.set)
        self._background.remove(receiver.write_overdue)
        self._background.remove(receiver.flush_outbox)
        self._background.remove(receiver.make_room)
        self._background.remove(receiver.flush_life_cycle)
        self._destinations.publish_last_usage(receiver.destination)
        self.open.remove(consumer)

    def _check_consumer(self, name: str) -> None:
        self._check()
        self._background.check(name)


def _attach(subscriber: Subscriber) -> None:
    """A pinned consumer that cannot attach to its member is not made."""
    try:
        subscriber.attach()
    except BaseException:
        subscriber.close()
        raise
