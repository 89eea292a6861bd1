"""Drop a durable subscription.

Features: C10, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.claims import views
from spark_jms.claims.open_records import opened_records
from spark_jms.claims.record_sets import label_of
from spark_jms.claims.stores import record_of
from spark_jms.core.active_subscription import is_durable
from spark_jms.errors import IllegalStateException, InvalidDestinationError
from spark_jms.log import subscriptions
from spark_jms.log.domain import Domain
from spark_jms.store import Store


def droppable_subscription(domain: Domain, store: Store, topic: str, name: str) -> list[views.SubscriptionRow]:
    """The members of a durable subscription. Raises InvalidDestinationError when there is none, and
    IllegalStateException while a
    consumer uses it."""
    declared = domain.log(topic).refresh().destination
    if not declared.is_topic:
        raise InvalidDestinationError(
            f"{topic} is a {declared.kind}: only a topic has subscriptions to drop; see `jmsq purge {topic}`"
        )
    if not is_durable(name):
        raise InvalidDestinationError(
            f"the subscription {name!r} of {topic} is not durable: it ends with its last consumer, and cannot be dropped"
        )
    rows = views.subscriptions(domain, store, topic, views.subscriptions_of(domain, topic, name)[0])
    live = [row for row in views.claims(domain, store, topic, name) if row.live]
    holders = sorted({row.holder for row in rows if row.holder} | {row.consumer for row in live})
    if holders:
        raise IllegalStateException(
            f"subscription {name} of {topic} is in use by {', '.join(holders)}: stop that first; nothing was dropped"
        )
    return rows


def drop_subscription(domain: Domain, store: Store, rows: Sequence[views.SubscriptionRow], wait_s: float) -> None:
    """Remove the durable subscription that `droppable_subscription` found, and its positions.

    The positions go first. If this is interrupted, the subscription still exists and starts over, so a repeated drop
    finishes; the other way round, a new subscription of this name would inherit the positions and miss messages."""
    topic, name = rows[0].destination, rows[0].subscription
    snapshot = domain.log(topic).refresh()
    with opened_records(
        store,
        {record_of(snapshot, name, row.member): label_of(topic, name, row.member) for row in rows},
        wait_s,
        "subscriptions --drop",
    ) as records:
        records.clear()
        subscriptions.drop_subscription(domain.log(topic), name)
