"""Drop a backlog, or remove the files that every subscription has finished.

Features: C13, C14, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from spark_jms.claims.records.life_cycle import AcknowledgementTable, flush_opened
from spark_jms.claims.servers.stores import label_of, opened_records, record_of, state_of
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.core.destinations.subscriptions import kept_at, named_by
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.endings import PURGER
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import DestinationReplacedError, InvalidDestinationError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import HousekeepingReport
from spark_jms.log.upkeep.purge import finished_files, purge
from spark_jms.store import Store

_MAX_PURGE_COMMITS = 10_000


@dataclass(frozen=True)
class Purged:
    """What a purge did, or would do. `dropped` messages got no consumer; `claimed` ones were left to the consumers that have
    claimed them. `deleted_messages` were finished, and so were all others of the `deleted_files`."""

    dropped: int
    claimed: int
    deleted_messages: int = 0
    deleted_files: int = 0


def plan_purge(
    domain: Domain,
    store: Store,
    destination: str,
    subscription: str | None,
    members: Iterable[int],
    server: str | None = None,
) -> Purged:
    """Read-only. Without `members` only finished files would go. `server`: see `drop_backlog`. Raises InvalidDestinationError."""
    snapshot = domain.log(destination).refresh()
    chosen = set(members)
    wanted = _subscriptions(domain, store, destination, subscription, server)
    dropped = claimed = 0
    after: dict[tuple[str, int], RecordSet] = {}
    names = views.subscriptions_of(domain, destination, None, store)
    for name in names:
        for member in snapshot.destination.member_ids:
            state = state_of(store, snapshot, name, member)
            if name in wanted and member in chosen:
                free = state.available(1, snapshot.last_sequence(member))
                dropped += free.count
                claimed += state.claimed.count
                state = state.skip(free)
            after[name, member] = state
    files = finished_files(
        snapshot,
        lambda name, member, picks: after[name, member].is_done(picks),
        now_ms(),
        len(snapshot.files),
        names if snapshot.destination.is_topic else (),
    )
    return Purged(dropped, claimed, sum(file.rows for file in files), len(files))


def drop_backlog(
    domain: Domain,
    store: Store,
    destination: str,
    subscription: str | None,
    members: Iterable[int],
    wait_s: float,
    server: str | None = None,
) -> Purged:
    """Finish every message sent so far and not claimed, with rows in the acknowledgement table. `server`: of a replicated topic,
    for the subscriptions there alone. Raises InvalidDestinationError."""
    chosen = list(members)
    dropped = claimed = 0
    for name in _subscriptions(domain, store, destination, subscription, server):
        known = domain.log(destination).refresh()
        names = {record_of(known, name, member): member for member in chosen}
        labels = {record: label_of(destination, name, member) for record, member in names.items()}
        with opened_records(
            store, labels, wait_s, "purge", logged=known.destination.message_logging_enabled
        ) as records:
            snapshot = domain.log(destination).refresh()
            if snapshot.table_id != known.table_id:
                raise DestinationReplacedError(
                    f"{destination} was dropped and created again: nothing was dropped; try again"
                )
            states = {}
            for record, member in names.items():
                state = records.states[record].start_at(state_of(store, snapshot, name, member).floor)
                free = state.available(1, snapshot.last_sequence(member))
                claimed += state.claimed.count
                dropped += free.count
                states[record] = _finished(state, free, records.handles[record].epoch) if free else state
            records.change(states)
            table = AcknowledgementTable(domain.acknowledgements(destination), snapshot.table_id, name)
            flush_opened(table, records, names)
    return Purged(dropped, claimed)


def _subscriptions(
    domain: Domain, store: Store, destination: str, subscription: str | None, server: str | None
) -> list[str]:
    declared = domain.log(destination).refresh().destination
    only = None if subscription is None else kept_at(declared, server, subscription)
    found = named_by(declared, server, views.subscriptions_of(domain, destination, only, store))
    if only is not None and not found:
        raise InvalidDestinationError(
            f"subscription {only} of {destination} is not on server {server}: nothing was dropped"
        )
    return found


def _finished(state: RecordSet, picks: Ranges, epoch: int) -> RecordSet:
    """With an acknowledgement of the purger's."""
    return state.discard(picks, PURGER, secrets.token_hex(8), epoch, now_ms())


def purge_files(domain: Domain, store: Store, destination: str) -> HousekeepingReport:
    """Remove the files that every subscription has finished from the table. Safe beside other housekeeping."""
    housekeeper = Housekeeper(domain, store, destination)
    report = HousekeepingReport()
    try:
        for _ in range(_MAX_PURGE_COMMITS):
            before = report.purged_files
            purge(
                domain.log(destination),
                housekeeper.is_done,
                report,
                live_names=housekeeper.live_names,
                publish=housekeeper.publish_usage,
            )
            if report.purged_files == before:
                break
    finally:
        housekeeper.close()
    return report
