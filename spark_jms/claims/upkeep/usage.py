"""Publishes what is unfinished of a destination.

Senders have no store, so they read what is published: core/limits/quota.py has the rule. Housekeeping publishes every 2 seconds,
and every process with consumers of the destination several times a second, because senders may wait for room. Only destinations
that `publishes_usage` names publish; for all others nothing is read or written. A sender that finds no room publishes too, where its
process has the stores (UsageRecount).

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.claims.servers.timed_stores import StoreThread, StoreThreadBusyError
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import DomainError, JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import publishes_usage
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
PUBLISH_EVERY_S = 0.05
_SHARE_OF_TIME = 0.05  # that a publisher may use
RECOUNT_LIMIT_S = 0.5  # that a sender waits for it
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


class UsageRecount:
    """Publishes the usage of destinations for a sender that finds no room, before those that consume from them do. Thread-safe: of
    threads that ask at once, one looks, and the others share what it finds. `stores` gives the store with the record sets of a
    destination. A call returns within `limit_s`, also while a store hangs, and raises nothing. While a server is away, what was
    published stays: others may reach it."""

    def __init__(
        self,
        domain: Domain,
        stores: Callable[[], AbstractContextManager[Callable[[str], Store]]],
        limit_s: float = RECOUNT_LIMIT_S,
    ) -> None:
        self._domain, self._stores, self._limit_s = domain, stores, limit_s
        self._thread, self._lock = StoreThread("count of usage"), threading.Lock()
        self._begun_s = float("-inf")  # the newest look
        self._told = ""  # why the newest one has failed, as logged

    def __call__(self, destinations: Collection[str]) -> None:
        asked_s = time.monotonic()
        with self._lock:
            if self._begun_s >= asked_s:
                return
            self._begun_s = time.monotonic()
            try:
                self._thread.run(partial(self._look, sorted(destinations)), self._limit_s)
                self._told = ""
            except StoreThreadBusyError:
                self._tell("a store does not answer in time")
            except (JmsqError, StoreError, OSError) as error:
                self._tell(f"no store answers: {error}")

    def _tell(self, why: str) -> None:
        """Once, until one answers: a sender asks many times a second."""
        if why != self._told:
            self._told = why
            log.warning("senders that look for room go by what is published: %s", why)

    def _look(self, destinations: Sequence[str]) -> None:
        with self._stores() as store_of:
            for name in destinations:
                if not is_temporary(name) or name in self._domain.temporary.own:
                    self._publish(name, timed_stores(store_of(name)))

    def _publish(self, name: str, store: Store) -> None:
        def state(snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
            try:
                return state_of(store, snapshot, subscription, member)
            except StoreError as error:
                raise DomainError(f"{name}: a store with its positions does not answer ({error})") from error

        def live(snapshot: Snapshot) -> list[str]:
            return sorted(not_durable(store, snapshot.table_id)) if snapshot.destination.is_topic else []

        try:
            table = self._domain.log(name)
            any(publish_usage(self._domain, table, state, live) for _ in range(ATTEMPTS))
        except (JmsqError, StoreError, OSError) as error:  # of one destination: the others may have room
            log.info("the usage of %s is not counted for a sender that looks for room: %s", name, error)

    def close(self) -> None:
        self._thread.close()


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
    size = sum(file.bytes_of(unfinished) for file in files)
    return MemberUsage(last, MessageUsage(unfinished.count, size), declared.server_of(member))


def _unfinished(snapshot: Snapshot, member: int, name: str, everything: Ranges, state: StateOf) -> Ranges:
    """All messages, while the server with the record set is away."""
    try:
        return state(snapshot, name, member).unfinished(everything.first, everything.last)
    except StoreError:
        return everything
