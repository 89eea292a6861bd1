"""Pause, resume, rename and drop a destination, and which destinations a command or call is about.

A rename and a drop have steps, each durable before the next. One that was interrupted anywhere is finished by the next one.

Features: C14, C18, D6, T1, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import attrs

from spark_jms.claims.consumers.absent_servers import LEFT_OUT, QUERY_PROGRESS
from spark_jms.claims.servers.stores import addressed, read_state
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.destinations.destination import Destination, check_name
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, OPERATIONS, PRODUCTION
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.stored_form import MEMBERS_PREFIX, lease_record, prefixes_of_table
from spark_jms.errors import (
    DestinationDroppedError,
    DestinationInUseError,
    InvalidDestinationError,
    MemberUnavailableError,
    OptionError,
    RecordSetError,
)
from spark_jms.log.destinations.declarations import PauseOrder, referring, set_pauses
from spark_jms.log.destinations.domain import Domain, RegisterEntry
from spark_jms.log.destinations.temporary import check_not_temporary
from spark_jms.log.limits.usage import FLOW
from spark_jms.log.tables.commit import (
    Decision,
    commit,
    commit_prepared,
    decide_drop,
    delete_dropped_table,
    metadata_action,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import Delete, RecordCorruptError, RecordHeldError, Session, Store

log = logging.getLogger("spark_jms")
_STEP_MS = 250


@dataclass(frozen=True)
class PauseRow:
    """One pause. `operation` is production, insertion or consumption. `member` None: of the whole destination. `server`: the member's,
    which is paused; None: the destination or member is."""

    operation: str
    member: int | None
    since: datetime
    server: str | None = None

    @property
    def scope(self) -> str:
        """For people."""
        member = "all" if self.member is None else str(self.member)
        return member if self.server is None else f"{member} (server {self.server})"


@dataclass(frozen=True)
class Paused:
    """The result of `pause` and `resume`. `pauses` are those that stand now, and `changed` says whether the call changed any."""

    destination: str
    changed: bool
    pauses: tuple[PauseRow, ...]


@dataclass(frozen=True)
class RenamedDestination:
    """The result of a renaming: the name changes, the table and all positions stay."""

    old: str
    new: str
    path: str  # of the table, below the root: it did not change


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


def names_or_all(domain: Domain, given: Sequence[str], *, addresses: bool = False) -> list[str]:
    """The named destinations, once each, or all of them; with `addresses` also members, as server@destination. Raises
    InvalidDestinationError for an unknown name."""
    for name in given:
        domain.log(DestinationAddress.parse(name).destination if addresses else name)
    return list(dict.fromkeys(given)) or domain.destinations()


# -- pause and resume --------------------------------------------------------------------------------------------------


def pause_rows(declared: Destination) -> tuple[PauseRow, ...]:
    return tuple(PauseRow(p.operation, p.member, moment(p.since_ms), p.server) for p in declared.pauses.all)


def pause(
    domain: Domain, destination: str, operations: Iterable[str] = OPERATIONS, members: Collection[int] | None = None
) -> Paused:
    """Pause these operations (production, insertion, consumption; all three by default) of the whole destination, or of
    some members. Repeatable: a pause that stands keeps its time. Raises OptionError, InvalidDestinationError: also for the
    consumption of a replicated topic's member, whose messages belong to the subscriptions on all servers."""
    return _set(domain, destination, _order(domain, destination, operations, members, resume=False))


def resume(
    domain: Domain, destination: str, operations: Iterable[str] = OPERATIONS, members: Collection[int] | None = None
) -> Paused:
    """Resume these operations of some members, or of the destination and all its members. A member stays paused while the
    destination is. Raises OptionError, InvalidDestinationError."""
    return _set(domain, destination, _order(domain, destination, operations, members, resume=True))


def check_operations(operations: Iterable[str]) -> tuple[str, ...]:
    """Raises OptionError."""
    wanted = tuple(operations)
    unknown = [operation for operation in wanted if operation not in OPERATIONS]
    if unknown or not wanted:
        raise OptionError(f"operations are {list(wanted)!r}, but must be some of {', '.join(OPERATIONS)}")
    return wanted


def _order(
    domain: Domain, destination: str, operations: Iterable[str], members: Collection[int] | None, *, resume: bool
) -> PauseOrder:
    wanted = check_operations(operations)
    declared = domain.log(destination).refresh().destination
    for member in members or ():
        declared.check_member(member)
    if members and not resume and CONSUMPTION in wanted and declared.is_replicated:
        raise InvalidDestinationError(
            f"{destination} is a replicated distributed topic: the messages of a member belong to the subscriptions on all servers, "
            f"so its consumption cannot be paused alone. Pause {PRODUCTION} or {INSERTION} of the member, or the whole topic; "
            "`jmsq server stop` stops the subscriptions on a server"
        )
    return PauseOrder(wanted, None if members is None else tuple(sorted(set(members))), resume)


def _set(domain: Domain, destination: str, order: PauseOrder) -> Paused:
    table = domain.log(destination)
    changed = set_pauses(table, order)
    if changed:
        scope = "" if order.members is None else f", member {', '.join(map(str, order.members))}"
        done = "resumed" if order.resume else "paused"
        log.info("%s%s: %s %s", destination, scope, done, ", ".join(order.operations))
    return Paused(destination, changed, pause_rows(table.refresh().destination))


# -- rename ------------------------------------------------------------------------------------------------------------


def rename_destination(domain: Domain, store: Store, old: str, new: str, *, force: bool = False) -> RenamedDestination:
    """Rename a destination, or finish a rename that was interrupted. Its table stays where it is, and its state has the table's id in
    its names. So subscriptions, positions, claims and checkpoints stay valid: queries and applications continue under the new name.

        1  a register entry of the new name, with the same paths    both names work; no other table can take the new one
        2  a commit changes the name in the table's metadata, and begins a new epoch: a reservation under the old name covers no send
        3  the ledgers of its quotas count it under the new name; shared ones under the old one too, until it has ended
        4  the old register entry is removed

    Raises DestinationInUseError, and changes nothing, while consumers are alive, unless forced; InvalidDestinationError
    when there is no `old`, or another destination is called `new`.
    """
    check_name("destination", new)
    check_not_temporary(new)
    log = domain.log(old)
    table_id = log.refresh().table_id
    entry = domain.register.entry(old)
    assert entry is not None
    taken = domain.register.entry(new)
    if old == new or (taken is not None and taken != entry):
        raise InvalidDestinationError(f"{new} is the name of another destination: {old} was not renamed")
    consumers = consumers_alive(domain, store, table_id)
    if consumers and not force:
        raise DestinationInUseError(
            f"destination {old} is used by {', '.join(consumers)}: it was not renamed. Stop its consumers and senders, or "
            "rename it with --force: then they get InvalidDestinationError sooner or later, and have to be started with the "
            "new name"
        )
    if taken is None and not force and (others := referring(domain, old)):
        raise DestinationInUseError(
            f"destination {old} is the errorDestination of {', '.join(others)}: it was not renamed. Rename it with --force, "
            "then apply the new name there: until then their failed messages are kept back"
        )
    if taken is None and not domain.register.add(new, entry):
        raise InvalidDestinationError(f"{new} was created meanwhile: {old} was not renamed")

    def decide(snapshot: Snapshot) -> Decision | None:
        if snapshot.destination.name == new:
            return None
        declared = snapshot.destination
        action = metadata_action(snapshot, attrs.evolve(declared, name=new, epoch=declared.epoch + 1))
        return Decision("RENAME", [{"metaData": {**action["metaData"], "name": new}}])

    commit(log, decide)
    domain.quotas.observe(new)
    domain.quotas.forget(old)
    domain.register.remove(old)
    return RenamedDestination(old, new, entry.path)


# -- drop --------------------------------------------------------------------------------------------------------------


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
    """Drop a destination with its messages and state, or finish a drop that was interrupted. Returns what it deleted.

        1  a commit to the table's log marks it dropped       senders and consumers get DestinationDroppedError
        2  the register entry names the table as dropping     the name cannot be used; the id of the table survives its files
        3  the records of the table in the store are emptied
        4  the files of its tables are deleted
        5  the register entry is removed                      the name is free

    The first of a send and step 1 decides: messages that were sent before it are counted, and nothing is sent after it.

    Raises DestinationInUseError, and changes nothing, while it has unfinished messages or live consumers, unless forced;
    MemberUnavailableError when another session has a record open for `wait_s`: then drop again.
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
    """What the sessions call themselves that take messages of this table or have opened records of it, without those that do its
    housekeeping."""
    sessions = store.sessions()
    infos = [info for prefix in _prefixes(domain, table_id) for info in store.infos(prefix).values()]
    found = {info.holder or "" for info in infos if info.name != lease_record(table_id)}
    for server in _servers(domain):
        for record in store.names(addressed(server, f"{MEMBERS_PREFIX}{table_id}/")):
            with suppress(RecordCorruptError, RecordSetError):
                found.update(read_state(store, record).consumers.values())
    return sorted({sessions[session].label for session in found if session in sessions})


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
    return [addressed(server, prefix) for server in _servers(domain) for prefix in prefixes_of_table(table_id)]


def _servers(domain: Domain) -> tuple[str, ...]:
    return (HOME, *domain.servers.names())


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
