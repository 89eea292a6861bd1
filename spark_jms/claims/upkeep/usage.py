"""Publishes what is unfinished of a destination.

Senders have no store, so they read what is published: core/limits/quota.py has the rule. Housekeeping publishes every 2 seconds,
and every process with consumers of the destination several times a second, because senders may wait for room. Only destinations
that `publishes_usage` names publish; for all others nothing is read or written.

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import Domain, publishes_usage
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
PUBLISH_EVERY_S = 0.05
_SHARE_OF_TIME = 0.05  # that a publisher may use
ATTEMPTS = 5  # of a publication that no other one follows soon
StateOf = Callable[[Snapshot, str, int], RecordSet]


class UsagePublisher:
    """Publishes the usage of one destination, in a process with consumers. Call `publish` often: it paces itself."""

    def __init__(self, domain: Domain, store: Store, destination: str) -> None:
        self._domain, self._store, self._log = domain, timed_stores(store), domain.log(destination)
        self._next_s = 0.0

    def publish_last(self) -> None:
        """A consumer closes. Raises nothing: housekeeping publishes as well."""
        try:
            self.publish(paced=False)
        except (JmsqError, StoreError, OSError) as error:
            log.warning("the usage of %s is published later, by housekeeping: %s", self._log.name, error)

    def publish(self, *, paced: bool = True) -> None:
        if not publishes_usage(self._domain, self._log.snapshot.destination):
            return
        begun = time.monotonic()
        if paced and begun < self._next_s:
            return
        try:
            for _ in range(1 if paced else ATTEMPTS):
                if publish_usage(self._domain, self._log, self.state, self._live):
                    break
        finally:
            ended = time.monotonic()
            self._next_s = ended + (ended - begun) / _SHARE_OF_TIME

    def state(self, snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
        return state_of(self._store, snapshot, subscription, member)

    def _live(self, snapshot: Snapshot) -> list[str]:
        return sorted(not_durable(self._store, snapshot.table_id)) if snapshot.destination.is_topic else []


def publish_usage(domain: Domain, log: DeltaLog, state: StateOf, live: Callable[[Snapshot], list[str]]) -> bool:
    """Publish what is unfinished of a destination. `live` names the subscriptions that are not in the table; it is asked after the
    snapshot is fixed. False: another process has published meanwhile."""
    table_id = log.snapshot.table_id

    def look() -> PublishedUsage | None:
        snapshot = log.refresh()
        if snapshot.table_id != table_id:
            return None
        names = [*snapshot.destination.subscription_names(), *live(snapshot)]
        members = member_usages(snapshot, names, state)
        durable = {one.name: one.created_ms for one in snapshot.destination.subscriptions.values()}
        return PublishedUsage(log.name, members, durable)

    return domain.usages.publish(table_id, look)


def member_usages(snapshot: Snapshot, names: list[str], state: StateOf) -> dict[int, MemberUsage]:
    """What the subscriptions have not finished. A member whose server is away counts with all its messages."""
    return {member: _member(snapshot, member, names, state) for member in snapshot.members}


def _member(snapshot: Snapshot, member: int, names: list[str], state: StateOf) -> MemberUsage:
    last, files = snapshot.last_sequence(member), snapshot.member_files(member).files
    declared = snapshot.destination
    unfinished = EMPTY
    if files and member in declared.member_ids:  # a removed member was finished
        everything = Ranges.of((files[0].first, files[-1].last))
        unfinished = union(_unfinished(snapshot, member, name, everything, state) for name in names)
    size = sum(file.bytes for file in files if unfinished & Ranges.of((file.first, file.last)))
    return MemberUsage(last, MessageUsage(unfinished.count, size), declared.server_of(member))


def _unfinished(snapshot: Snapshot, member: int, name: str, everything: Ranges, state: StateOf) -> Ranges:
    """All messages, while the server with the record set is away."""
    try:
        return state(snapshot, name, member).unfinished(everything.first, everything.last)
    except StoreError:
        return everything
