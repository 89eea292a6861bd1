"""What an application's objects work with, for tests of this project: to look at the log and the records beside the
application, and to do at a chosen moment what its background threads do at theirs. Not for applications: it may change with
any release.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jms.aio.blocking_calls import SendLimit
    from spark_jms.aio.clients import AsyncConsumer
    from spark_jms.aio.context import AsyncContext
    from spark_jms.claims.consumers.server_part import ServerPart
    from spark_jms.claims.consumers.subscriber import Subscriber
    from spark_jms.claims.records.members import Members
    from spark_jms.claims.records.subscriptions import SubscriptionUse
    from spark_jms.claims.transactions.transaction import Coordinators
    from spark_jms.client.context.connection_watch import ConnectionWatch
    from spark_jms.client.context.context import Context
    from spark_jms.client.receiving.consumer import Consumer
    from spark_jms.client.receiving.delivery import AcknowledgementWriter, Delivery
    from spark_jms.client.receiving.receiver import Receiver
    from spark_jms.client.sending.asynchronous_send import AsynchronousSender
    from spark_jms.client.sending.producer import Producer
    from spark_jms.client.transactions.session import TransactedSession
    from spark_jms.client.transactions.transaction import SessionTransaction
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.log.messages.paging import PagingFiles
    from spark_jms.store import Store


def domain_of(context: Context) -> Domain:
    """The tables: destinations, usage, acknowledgements."""
    return context._domain


def records_of(context: Context) -> Store:
    """The stores' records: claims, consumers, transactions."""
    return context._store


def watch_of(context: Context) -> ConnectionWatch:
    """Tells the connection's exception listener; there is one."""
    assert context._watch is not None
    return context._watch


def coordinators_of(context: Context) -> Coordinators:
    """Of the context's transactions."""
    return context._coordinators


def receiver_of(consumer: Consumer) -> Receiver:
    """Delivers the consumer's messages."""
    return consumer._receiver


def subscriber_of(consumer: Consumer) -> Subscriber:
    """Holds the consumer's claims, by a session of its own in the store."""
    return consumer._receiver._subscriber


def part_of(subscriber: Subscriber) -> ServerPart:
    """What the consumer of a destination without servers works with."""
    (part,) = subscriber.parts.values()
    return part


def members_of(subscriber: Subscriber) -> Members:
    """The record sets that it follows, and its session, of a destination without servers."""
    return part_of(subscriber).members


def use_of(consumer: Consumer) -> SubscriptionUse:
    """Of a subscription that is not durable: it ends with its last user."""
    use = consumer._receiver._subscriber._use
    assert use is not None
    return use


def delivery_of(consumer: Consumer) -> Delivery:
    """The messages that the consumer has: prefetched, delivered, finished."""
    return consumer._receiver._delivery


def acknowledgement_writer_of(consumer: Consumer) -> AcknowledgementWriter:
    """Writes the consumer's acknowledgements to the store."""
    return consumer._receiver._writer


def transaction_of(session: TransactedSession) -> SessionTransaction:
    """What the session has collected since its last commit or rollback."""
    return session._transaction


def asynchronous_sends_of(context: Context) -> AsynchronousSender:
    """The asynchronous sends of all producers of the context."""
    return context._asynchronous


def room_of(context: AsyncContext, destination: str = "orders") -> SendLimit:
    """The sends of coroutines that may be outstanding."""
    return context._rooms[destination]


@contextmanager
def commits_held(producer: Producer) -> Iterator[None]:
    """In the block, sends to the producer's destination by this context wait in its queue."""
    with producer._shared._group._turn:
        yield


def sends_queued(producer: Producer) -> int:
    """How many sends to the producer's destination wait for the commit before them."""
    return len(producer._shared._group._queue)


def requests_waiting(context: Context) -> int:
    """How many keys replies are expected by: a request has its correlation id, and its message id once that is known."""
    return len(context._requestor._waiting)


def consumer_of(consumer: AsyncConsumer) -> Consumer:
    """The one whose calls a coroutine's consumer makes in threads."""
    return consumer._consumer


def paging_files_of(context: Context) -> PagingFiles:
    """Of large messages that transactions and units of work have not sent yet."""
    return context._buffer.files
