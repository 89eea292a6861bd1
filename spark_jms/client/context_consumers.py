"""The consumers of a context: opened, run by its background thread, and closed.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_jms.claims.background import BackgroundThread
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.distributed import AnySubscriber, open_subscriber
from spark_jms.claims.subscription_request import subscription_request
from spark_jms.client.choices import Choices
from spark_jms.client.consumer import Consumer
from spark_jms.client.consumer_arguments import (
    GivenConsumer,
    check_listeners,
    check_prefetch,
    named_members,
    starting_position_option,
)
from spark_jms.client.context_destinations import ContextDestinations
from spark_jms.client.listener import ListenerThread
from spark_jms.client.message import Message
from spark_jms.client.metric_names import CONSUMER_COUNTS
from spark_jms.client.open_clients import OpenClients
from spark_jms.client.receiver import AcknowledgeMode, Receiver, Transacted
from spark_jms.client.transacted_session import SessionSide, TransactedConsumer
from spark_jms.core.address import DestinationAddress
from spark_jms.core.selector import Selector
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.message_buffer import MessageBuffer
from spark_jms.log.watch import LogWatch

HAND_OVER_EVERY_S = 0.1


class ContextConsumers:
    """Thread-safe. `reply` replies to a message; `check` raises ClosedError when the context is closed."""

    def __init__(
        self,
        domain: Domain,
        destinations: ContextDestinations,
        choices: Choices,
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
            server=address.server,
            home=self._choices.pinning.home,
            members=settings.members,
        )
        consumer_name = f"client-{secrets.token_hex(6)}"
        subscriber = open_subscriber(self._domain, store, destination, request, consumer_name, settings)
        if settings.pinned:
            _take_up(subscriber)
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
        self._watch.add(log, bell.set)
        self.open.add(consumer)
        self._background.add_consumer(
            receiver.name,
            receiver.hand_over,
            HAND_OVER_EVERY_S,
            receiver.flush_outbox,
            receiver.make_room,
            receiver.flush_life_cycle,
        )
        self._destinations.publish_usage(receiver.destination)
        if thread is not None:
            thread.start()
        return consumer

    def _ended(self, receiver: Receiver, bell: threading.Event, consumer: Consumer) -> None:
        self._watch.remove(bell.set)
        self._background.remove(receiver.hand_over)
        self._background.remove(receiver.flush_outbox)
        self._background.remove(receiver.make_room)
        self._background.remove(receiver.flush_life_cycle)
        self._destinations.publish_last_usage(receiver.destination)
        self.open.remove(consumer)

    def _check_consumer(self, name: str) -> None:
        self._check()
        self._background.check(name)


def _take_up(subscriber: AnySubscriber) -> None:
    """A pinned consumer that cannot take up its member is not made."""
    try:
        subscriber.take_up()
    except BaseException:
        subscriber.close()
        raise
