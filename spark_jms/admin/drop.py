"""Drop a destination, with its messages and state.

The steps, each durable before the next. A drop that was interrupted anywhere is finished by the next one:

    1  a commit to the table's log marks it dropped       senders and consumers get DestinationDroppedError
    2  the register entry names the table as dropping     the name cannot be used; the id of the table survives its files
    3  the records of the table in the store are emptied
    4  the files of its tables are deleted
    5  the register entry is removed                      the name is free

The first of a send and step 1 decides: messages that were sent before it are counted, and nothing is sent after it.

Features: C14, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_jms.claims import views
from spark_jms.claims.left_out import LEFT_OUT
from spark_jms.claims.noted_progress import QUERY_PROGRESS
from spark_jms.claims.stores import addressed
from spark_jms.core.placement import HOME
from spark_jms.core.record_names import lease_record, prefixes_of_table
from spark_jms.errors import (
    DestinationDroppedError,
    DestinationInUseError,
    InvalidDestinationError,
    MemberUnavailableError,
)
from spark_jms.log.commit import Decision, commit_prepared
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.dropped_table import decide_drop, delete_dropped_table
from spark_jms.log.error_destinations import referring
from spark_jms.log.flow_watch import FLOW
from spark_jms.log.register import RegisterEntry
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Delete, RecordCorruptError, RecordHeldError, Session, Store

_STEP_MS = 250


@dataclass(frozen=True)
class DropPlan:
    """What a drop deletes. `unfinished` counts messages that a subscription has not acknowledged, over all
    subscriptions. `begun`: an interrupted drop, of which the rest would be done."""

    destination: str
    path: str
    acknowledgements: str
    stored_messages: int = 0
    unfinished: int = 0
    bytes: int = 0
    subscriptions: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()  # that are alive
    begun: bool = False


def plan_drop(domain: Domain, store: Store, destination: str, *, force: bool = False) -> DropPlan:
    """Read-only. Raises InvalidDestinationError when there is no such destination, or, unless forced, when its files were
    deleted by hand."""
    entry = _entry(domain, destination)
    rest = DropPlan(destination, entry.path, entry.acknowledgements, begun=True)
    if entry.dropping is not None:
        return rest
    snapshot = _snapshot(domain, destination, entry, force=force)
    if snapshot is None or snapshot.dropped:
        return rest
    files = list(snapshot.files.values())
    return replace(
        rest,
        stored_messages=sum(file.rows for file in files),
        unfinished=_unfinished(domain, store, destination),
        bytes=sum(file.bytes for file in files),
        subscriptions=tuple(sorted(snapshot.destination.subscriptions)),
        consumers=tuple(consumers_alive(domain, store, snapshot.table_id)),
        begun=False,
    )


def drop_destination(
    domain: Domain, store: Store, destination: str, *, force: bool = False, wait_s: float = 15.0
) -> DropPlan:
    """Drop a destination, or finish a drop that was interrupted. Returns what it deleted.

    Raises DestinationInUseError, and changes nothing, while it has unfinished messages or live consumers, unless forced;
    MemberUnavailableError when a consumer does not hand over a record within `wait_s`: then drop again.
    """
    entry = _entry(domain, destination)
    plan = plan_drop(domain, store, destination, force=force)
    if entry.dropping is None and _snapshot(domain, destination, entry, force=force) is None:
        entry = replace(entry, dropping="")  # there is no table to mark, and no id by which to find records
    if entry.dropping is None:
        table_id = _mark_dropped(domain, store, destination, entry, force=force)
        entry = replace(entry, dropping=table_id)
        domain.register.replace(destination, entry)
    if entry.dropping:
        _empty_records(domain, store, entry.dropping, destination, wait_s)
        for marks in (LEFT_OUT, QUERY_PROGRESS, FLOW):
            domain.storage.delete_all(f"{marks}/{entry.dropping}")
        domain.usages.delete(entry.dropping)
    domain.quotas.forget(destination)
    delete_dropped_table(domain.storage, entry.path)
    domain.storage.delete_all(entry.life_cycle)
    domain.storage.delete_all(entry.acknowledgements)
    domain.register.remove(destination)
    domain.forget(destination)
    return plan


def consumers_alive(domain: Domain, store: Store, table_id: str) -> list[str]:
    """What the sessions that hold records of this table call themselves, without those that do its housekeeping."""
    sessions = store.sessions()
    infos = [info for prefix in _prefixes(domain, table_id) for info in store.infos(prefix).values()]
    holders = {info.holder for info in infos if info.holder and info.name != lease_record(table_id)}
    return sorted({sessions[holder].label for holder in holders if holder in sessions})


def _entry(domain: Domain, destination: str) -> RegisterEntry:
    entry = domain.register.entry(destination)
    if entry is None:
        domain.log(destination)  # raises, with the names that there are
        raise InvalidDestinationError()
    return entry


def _snapshot(domain: Domain, destination: str, entry: RegisterEntry, *, force: bool) -> Snapshot | None:
    """None: the table was deleted by hand, which is an error unless forced."""
    try:
        return _log(domain, destination, entry).refresh(dropped=True)
    except InvalidDestinationError as error:
        if force:
            return None
        raise InvalidDestinationError(
            f"{error}. Or, if its files were deleted by hand: `jmsq drop --force {destination}` removes the rest"
        ) from error


def _log(domain: Domain, destination: str, entry: RegisterEntry) -> DeltaLog:
    return DeltaLog(domain.storage.child(entry.path), destination)


def _unfinished(domain: Domain, store: Store, destination: str) -> int:
    return sum(row.backlog for row in views.subscriptions(domain, store, destination))


def _mark_dropped(domain: Domain, store: Store, destination: str, entry: RegisterEntry, *, force: bool) -> str:
    """Step 1. Returns the id of the table."""
    log = _log(domain, destination, entry)
    known = log.refresh(dropped=True)
    if known.dropped:
        return known.table_id

    def in_use(snapshot: Snapshot) -> str:
        if force:
            return ""
        referring_to = referring(domain, destination)
        unfinished, consumers = (
            _unfinished(domain, store, destination),
            consumers_alive(domain, store, snapshot.table_id),
        )
        reasons = [f"has {unfinished:,} unfinished message(s)"] * bool(unfinished)
        reasons += [f"is used by {', '.join(consumers)}"] * bool(consumers)
        reasons += [f"is the errorDestination of {', '.join(referring_to)}"] * bool(referring_to)
        return " and ".join(reasons)

    def decide(snapshot: Snapshot, reasons: str) -> Decision:
        if reasons:
            raise DestinationInUseError(
                f"destination {destination} {reasons}: nothing was dropped. Consume or `jmsq purge {destination}`, and stop "
                "its consumers; or drop it with --force"
            )
        return decide_drop(snapshot)

    with suppress(DestinationDroppedError):  # another drop was first
        commit_prepared(log, in_use, decide)
    return log.refresh(dropped=True).table_id


def _prefixes(domain: Domain, table_id: str) -> list[str]:
    """Of the table's records, on every server: while a drop is finished, nothing tells where its members were."""
    servers = (HOME, *domain.servers.names())
    return [addressed(server, prefix) for server in servers for prefix in prefixes_of_table(table_id)]


def _empty_records(domain: Domain, store: Store, table_id: str, destination: str, wait_s: float) -> None:
    """Step 3. A store keeps the names of records. One that is damaged keeps its bytes: no other table ever uses it."""
    deadline = time.monotonic() + wait_s
    with store.connect(f"jmsq drop {destination}") as session:
        for name in _filled_records(domain, store, table_id):
            with suppress(RecordCorruptError):
                _empty(store, session, name, deadline, table_id=table_id, destination=destination)


def _filled_records(domain: Domain, store: Store, table_id: str) -> Iterator[str]:
    for prefix in _prefixes(domain, table_id):
        for name in store.names(prefix):
            with suppress(RecordCorruptError):
                if store.peek(name):
                    yield name


def _empty(store: Store, session: Session, name: str, deadline: float, *, table_id: str, destination: str) -> None:
    while True:
        left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
        try:
            with session.open(name, timeout_ms=min(left_ms, _STEP_MS)) as record:
                record.commit([Delete(key) for key in record.objects()])
                return
        except RecordHeldError as error:
            if name == lease_record(table_id):
                return  # it holds only what failed, and its holder ends with the destination
            if left_ms == 0:
                holder = store.sessions().get(error.holder or "")
                raise MemberUnavailableError(
                    f"destination {destination} is dropped, but {holder.label if holder else 'another session'} still holds "
                    f"one of its records ({name}): stop it, then run `jmsq drop {destination}` again, which does the rest"
                ) from error
