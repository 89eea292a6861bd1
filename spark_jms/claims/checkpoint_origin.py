"""Whether a Spark checkpoint belongs to the destination and the subscription that its query names now.

An offset names its consumer and its table. The consumer's progress is in the store, under the subscription that the query has
consumed; so a query that names another one is found out before it changes anything.

Features: C5, C10, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

from contextlib import suppress

from spark_jms.claims.stores import names_everywhere, timed_stores
from spark_jms.core.batch import Batch
from spark_jms.core.query_progress import PROGRESS
from spark_jms.core.record_names import consumers_prefix
from spark_jms.errors import DestinationReplacedError, ForeignCheckpointError, JmsqError
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store, StoreError


def check_origin(domain: Domain, store: Store, snapshot: Snapshot, subscription: str | None, batch: Batch) -> None:
    """`batch` is the checkpoint's last offset. `subscription` None: the query of a topic names none, which is refused later. A server
    that is away, or hangs, is left out, so that the query continues with the others. Raises ForeignCheckpointError and
    DestinationReplacedError."""
    name = snapshot.destination.name
    if batch.table not in ("", snapshot.table_id):
        raise other_table(domain, name, snapshot.table_id, batch)
    if subscription is None:
        return
    known = _subscriptions_of(timed_stores(store), snapshot.table_id, batch.consumer)
    if known and subscription not in known:
        raise ForeignCheckpointError(
            f"the checkpoint of consumer {batch.consumer} belongs to the subscription {min(known)!r} of {name}, and the query names "
            f"{subscription!r}: nothing was changed. Name {min(known)!r} again, or start with a fresh checkpointLocation."
        )


def other_table(domain: Domain, destination: str, table_id: str, batch: Batch) -> JmsqError:
    """Why an offset of another table than `table_id`, which is the destination's, cannot be continued."""
    checkpoint = f"the checkpoint of consumer {batch.consumer}"
    if not batch.table:
        return DestinationReplacedError(
            f"{checkpoint} has an offset of version 1, which names no table, and the store does not know the query: {destination} "
            "was dropped and created again, or the root is another one. Start with a fresh checkpointLocation."
        )
    for other in domain.destinations():
        if other != destination and _table_of(domain, other) == batch.table:
            return ForeignCheckpointError(
                f"{checkpoint} belongs to {other}, and the query names {destination} in its place: nothing was changed. Name {other} "
                "again (the sources of a query keep their order), or start with a fresh checkpointLocation."
            )
    return DestinationReplacedError(
        f"{checkpoint} belongs to the table {batch.table}. The one of {destination} is {table_id}, and no other destination of "
        f"{domain.root} has it: {destination} was dropped and created again, or the root is another one. Name the root of the "
        "checkpoint, or start with a fresh checkpointLocation."
    )


def _table_of(domain: Domain, destination: str) -> str | None:
    """None: it cannot be read now, so it is not known to be the one."""
    try:
        return domain.log(destination).refresh().table_id
    except (JmsqError, OSError):
        return None


def _subscriptions_of(store: Store, table_id: str, consumer: str) -> set[str]:
    """Those with progress of this query, on the servers that answer."""
    found = set()
    for record in names_everywhere(store, consumers_prefix(table_id)):
        _, subscription, name = record.rsplit("/", 2)
        with suppress(StoreError):
            if name == consumer and PROGRESS in store.peek(record):
                found.add(subscription)
    return found
