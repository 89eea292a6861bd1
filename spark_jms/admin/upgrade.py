"""Upgrade a domain: one of format version 1, and tables of earlier releases.

In a domain of format version 1 record sets get their new names and form, queries a record of their own:

    1  refuse while sessions are alive
    2  mark the domain: earlier versions of spark-jms refuse it from now on, and so do we until the end
    3  refuse again if a session came to life in between
    4  write the progress of each query
    5  for each record set: write the new one and delete the old one, in one write of the store
    6  remove the mark

Tables of releases that did not name the statistics which other programs may use get that property (`shown_statistics` of
log/tables/files.py): one commit each, without a new format, so that jobs, clients and earlier releases continue meanwhile.

After a crash at any point, `upgrade` again finishes the work: every step leaves alone what is done.

Features: C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_jms.claims.servers.stores import label_of, operations
from spark_jms.core.records.batch import PROGRESS, QueryProgress, claim_number
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import (
    STATE_KEY,
    RecordSetV1,
    consumer_record,
    from_v1,
    member_record,
    record_name_v1,
)
from spark_jms.errors import InvalidDestinationError, JmsqError, RecordSetError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep.usage_history import USAGE_HISTORY
from spark_jms.store import Delete, Put, Session, Store


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade would do. Empty: the domain is up to date."""

    records: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()  # those that get a property


@dataclass(frozen=True)
class _Found:
    """A record set of version 1, with its place."""

    destination: str
    table_id: str
    subscription: str
    member: int
    written_position: int  # rows of its outbox that the acknowledgement table has
    known: RecordSetV1

    @property
    def label(self) -> str:
        return label_of(self.destination, self.subscription, self.member)


def plan_upgrade(domain: Domain, store: Store) -> UpgradePlan:
    """Read-only. Raises RecordSetError for a record set that cannot be adopted."""
    found = list(_found(domain, store))
    queries = {f"{one.destination} {name}" for one in found for name in _progress([one])}
    return UpgradePlan(tuple(one.label for one in found), tuple(sorted(queries)), plan_tables(domain).tables)


def upgrade(domain: Domain, store: Store) -> UpgradePlan:
    """`domain` was opened with `upgrading`. Raises JmsqError while sessions are alive, and RecordSetError; then nothing is
    lost, and the upgrade can be repeated."""
    _refuse_live(store)
    plan = plan_upgrade(domain, store)
    domain.mark(upgrading=True)
    _refuse_live(store)
    found = list(_found(domain, store))
    with store.connect("jmsq upgrade") as session:
        for table_id, subscription in sorted({(one.table_id, one.subscription) for one in found}):
            own = [one for one in found if (one.table_id, one.subscription) == (table_id, subscription)]
            for consumer, progress in _progress(own).items():
                write_progress(session, consumer_record(table_id, subscription, consumer), progress)
        for one in found:
            moved(session, one)
    upgrade_tables(domain)
    domain.mark(upgrading=False)
    return plan


def plan_tables(domain: Domain) -> UpgradePlan:
    """Of a domain of this format: what `upgrade_tables` would do. Read-only."""
    return UpgradePlan(tables=tuple(log.name for log in _tables(domain) if log.snapshot.table.lacking_property))


def upgrade_tables(domain: Domain) -> UpgradePlan:
    """Repeatable, and beside whatever uses the tables."""
    done = [log.name for log in _tables(domain) if commit(log, _decide_property) is not None]
    return UpgradePlan(tables=tuple(done))


def _decide_property(snapshot: Snapshot) -> Decision | None:
    """Pure. Each commit to a table adds what it lacks."""
    return Decision("SET TBLPROPERTIES", []) if snapshot.table.lacking_property else None


def _tables(domain: Domain) -> Iterator[DeltaLog]:
    """All that the domain has: of its destinations, and of the usage history. Their snapshots are new."""
    for destination in domain.destinations():
        beside = domain.life_cycle(destination)
        for log in (domain.log(destination), domain.acknowledgements(destination), *([beside] if beside else [])):
            log.refresh()
            yield log
    history = DeltaLog(domain.storage.child(USAGE_HISTORY), "usage history")
    with suppress(InvalidDestinationError):  # no service has written any
        history.refresh()
        yield history


def _refuse_live(store: Store) -> None:
    live = sorted({info.label or info.session_id for info in store.sessions().values()})
    if live:
        raise JmsqError(
            f"{len(live)} session(s) use this domain ({', '.join(live[:5])}): stop all jobs, clients and tools, then run "
            "`jmsq upgrade` again"
        )


def _found(domain: Domain, store: Store) -> Iterator[_Found]:
    for destination in domain.destinations():
        snapshot = domain.log(destination).refresh()
        positions = domain.acknowledgements(destination).refresh().transactions
        for subscription in snapshot.destination.subscription_names():
            members = snapshot.numbered_members() | set(snapshot.destination.member_ids)
            for member in sorted(members):
                name = record_name_v1(destination, subscription, member)
                data = store.peek(name).get(STATE_KEY)
                if data is None:
                    continue
                known, last = from_v1(data, name), snapshot.last_sequence(member)
                if known.state.newest_known > last:
                    raise RecordSetError(
                        f"the store knows message {known.state.newest_known} of {name}, but the table ends at {last}: the "
                        "destination was dropped and created again, or restored from an older copy. Restore tables and store "
                        "from copies of one moment, or drop the destination with the version that made it"
                    )
                written = positions.get(f"ack/{subscription}/{member}", 0)
                yield _Found(destination, snapshot.table_id, subscription, member, written, known)


def _progress(found: list[_Found]) -> dict[str, QueryProgress]:
    """query -> its progress, from all members of one subscription. Plain clients have none."""
    out: dict[str, QueryProgress] = {}
    for one in found:
        for consumer, claim in one.known.acknowledged.items():
            out[consumer] = out.get(consumer, QueryProgress()).with_acknowledged(claim)
        for claim_ in one.known.state.claims.values():
            if claim_.replayable:
                before = out.get(claim_.consumer, QueryProgress())
                out[claim_.consumer] = replace(before, claimed=max(before.claimed, claim_number(claim_.id), 1))
    return out


def write_progress(session: Session, record: str, progress: QueryProgress) -> None:
    with session.open(record) as handle:
        known = QueryProgress.from_bytes(handle.read(PROGRESS), record)
        merged = replace(known.with_acknowledged(progress.acknowledged), claimed=max(known.claimed, progress.claimed))
        if merged != known:
            handle.commit([Put(PROGRESS, merged.to_bytes())])


def moved(session: Session, one: _Found) -> None:
    state = one.known.state.delivered_to_table(one.written_position)
    old = session.open(record_name_v1(one.destination, one.subscription, one.member))
    new = session.open(member_record(one.table_id, one.subscription, one.member))
    with old, new:
        session.commit({new: operations(RecordSet(), state), old: [Delete(STATE_KEY)]})
