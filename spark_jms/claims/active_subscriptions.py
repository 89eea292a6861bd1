"""Which subscriptions of a topic consumers use now, read from the store.

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from spark_jms.claims.stores import home_of
from spark_jms.core.active_subscription import ActiveSubscription, is_durable
from spark_jms.core.destination import Subscription
from spark_jms.core.record_names import uses_record
from spark_jms.store import Store


def active_subscriptions(store: Store, table_id: str) -> dict[str, ActiveSubscription]:
    """Those with a live consumer. The sessions are read after the entries: one that entered lives, or has died since."""
    objects = store.peek(uses_record(table_id))
    return live_entries(objects, set(home_of(store).sessions())) if objects else {}


def not_durable(store: Store, table_id: str) -> dict[str, Subscription]:
    """The live subscriptions that no table has."""
    found = active_subscriptions(store, table_id)
    return {name: one.as_subscription() for name, one in found.items() if not is_durable(name)}


def live_entries(objects: Mapping[str, bytes], live: Set[str]) -> dict[str, ActiveSubscription]:
    found = {name: ActiveSubscription.from_bytes(name, data).among(live) for name, data in objects.items()}
    return {name: one for name, one in found.items() if one.users}
