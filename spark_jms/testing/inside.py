"""What an application's objects work with, for tests of this project: to look at the log and the records beside the
application, and to do at a chosen moment what its background threads do at theirs. Not for applications: it may change with
any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jms.claims.coordinators import Coordinators
    from spark_jms.claims.distributed import AnySubscriber
    from spark_jms.client.consumer import Consumer
    from spark_jms.client.context import Context
    from spark_jms.client.receiver import Receiver
    from spark_jms.log.domain import Domain
    from spark_jms.store import Store


def domain_of(context: Context) -> Domain:
    """The tables: destinations, usage, acknowledgements."""
    return context._domain


def records_of(context: Context) -> Store:
    """The stores' records: claims, consumers, transactions."""
    return context._store


def coordinators_of(context: Context) -> Coordinators:
    """Of the context's transactions."""
    return context._coordinators


def receiver_of(consumer: Consumer) -> Receiver:
    """Delivers the consumer's messages, and hands over members at its boundaries."""
    return consumer._receiver


def subscriber_of(consumer: Consumer) -> AnySubscriber:
    """Holds the consumer's claims, by a session of its own in the store."""
    return consumer._receiver._subscriber
