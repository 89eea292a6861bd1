"""Applying declarations: destinations created and changed as the module file declares them; paused, and subscribed to.

A declaration lives in the metadata of the destination's table, so a change is a commit to the log that also orders the messages: a
sender that routed by an older declaration notices at its commit, and whatever commits after a pause obeys it. A durable
subscription is a part of the declaration too: a purge either sees it, or was committed before it. core/destinations/pause.py has
the rules of pauses.

Features: C3, C8, C10, C16, D6, T1, T6, T10, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import attrs
import pyarrow as pa

from spark_jms.core.destinations.destination import Destination, Subscription
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, PRODUCTION, Pauses
from spark_jms.core.destinations.servers import HOME, LeaseTerm
from spark_jms.core.destinations.subscriptions import check_durable, check_kept, server_of_subscription
from spark_jms.core.messages.columns import PARTITION_SCHEMA, STORED_SCHEMA
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.ordering.units_of_order import paths_of_lost
from spark_jms.core.records.life_cycle import sent_id
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError, MemberRemovalError, ModuleFileError
from spark_jms.log.destinations.domain import Domain, RegisterEntry
from spark_jms.log.destinations.limits import follow_quota
from spark_jms.log.destinations.servers import with_outages
from spark_jms.log.destinations.temporary import check_not_temporary
from spark_jms.log.sending.units_of_order import ended_paths
from spark_jms.log.tables.checkpoints import commit_path
from spark_jms.log.tables.commit import (
    ACKNOWLEDGEMENT_SCHEMA,
    LIFE_CYCLE_SCHEMA,
    Decision,
    commit,
    commit_prepared,
    first_commit,
    metadata_action,
    removed_retention,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.destination import KEYS, UNLIMITED
from spark_jms.settings.fields import DISCARD

log = logging.getLogger("spark_jms")

# -- creating and changing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeclarationChange:
    """What `apply` did to one destination: created, changed, unchanged or left (not in the module)."""

    destination: str
    what: str
    detail: str = ""


def apply_destinations(
    domain: Domain, declared: Sequence[Destination], empty: Callable[[str, int], bool]
) -> list[DeclarationChange]:
    """Create and change destinations as declared. Running jobs follow at their next commit or plan.

    `empty(destination, member)` tells whether all subscriptions have finished a member's messages; a member that is not
    empty cannot be removed (MemberRemovalError). Destinations that are not declared stay unchanged.
    """
    existing = set(domain.register.names())  # those being dropped too: they are refused by name
    for wanted in declared:
        if SortOrder.of(wanted.destination_keys).is_costly:
            log.warning(
                "destination %s is sorted by %s: with a large backlog that costs time and memory for every batch; FIFO and LIFO "
                "do not",
                wanted.name,
                ", ".join(wanted.destination_keys),
            )
        if wanted.routing == "weighted":
            log.warning(
                "destination %s is weighted: weighted distributed destinations are deprecated, because members that differ are "
                "hard to administrate; use a uniform one (routing: round-robin or random)",
                wanted.name,
            )
        for server in wanted.servers:
            if server != HOME:
                _check_server(domain, wanted.name, server)
    check_error_destinations(domain, declared)
    for quota in {wanted.quota for wanted in declared if wanted.quota is not None}:
        domain.quotas.get(quota)  # raises, with the quotas that there are
    changes = []
    for wanted in declared:
        check_not_temporary(wanted.name)
        if wanted.name not in existing:
            states = ServerStates.of(domain, wanted)
            _create(domain, with_outages(Snapshot(wanted.name), states.on_new(wanted, wanted.servers)))
            _follow_states(domain, wanted, states)
            changes.append(DeclarationChange(wanted.name, "created", f"{wanted.kind}, {wanted.members} member(s)"))
        else:
            changes.append(change_destination(domain, wanted, empty))
            follow_quota(domain, wanted)
    warn_of_narrow_ones(domain, declared, {change.destination for change in changes if change.what == "changed"})
    names = {d.name for d in declared}
    return changes + [DeclarationChange(name, "left", "not in the module") for name in sorted(existing - names)]


def _check_server(domain: Domain, destination: str, server: str) -> None:
    """Raises DomainError, with the servers that there are."""
    if domain.servers.entry(server).removed:
        raise DomainError(f"destination {destination} names server {server}, which is being removed: leave it out")


def _create(domain: Domain, destination: Destination) -> None:
    by_name = RegisterEntry.by_name(destination.name)
    path = _own_path(domain, by_name.path, destination.name)
    continued = domain.storage.exists(f"{path}/{commit_path(0)}")
    acknowledgements_path = _own_path(domain, by_name.acknowledgements, destination.name, continued=continued)
    entry = RegisterEntry(path, acknowledgements_path)
    create_tables(domain, destination, entry.path, entry.acknowledgements)
    if destination.message_logging_enabled:
        create_table(domain, entry.life_cycle, LIFE_CYCLE_SCHEMA, _of_history(destination))
    if not domain.register.add(destination.name, entry):  # another process has created it meanwhile
        for path in {entry.path, entry.acknowledgements, entry.life_cycle} - domain.register.paths():
            domain.storage.delete_all(path)


def _own_path(domain: Domain, path: str, name: str, *, continued: bool = True) -> str:
    """`path` if it is free, or `continued` and has a table of this name that is not in the register (an apply was
    interrupted); otherwise another one."""
    if next(iter(domain.storage.list(path)), None) is None:
        return path
    if continued and path not in domain.register.paths():
        with suppress(JmsqError):  # not a table of ours
            if DeltaLog(domain.storage.child(path), name).refresh().destination.name == name:
                return path
    return f"{path}.{secrets.token_hex(4)}"


def create_tables(domain: Domain, destination: Destination, path: str, acknowledgements_path: str) -> None:
    """The tables of its messages and of its acknowledgements. Leaves an existing table unchanged."""
    create_table(domain, path, STORED_SCHEMA, destination)
    create_table(domain, acknowledgements_path, ACKNOWLEDGEMENT_SCHEMA, _of_history(destination))


def _of_history(destination: Destination) -> Destination:
    """What a table beside the destination's own declares."""
    return attrs.evolve(
        destination,
        kind="distributed-queue",
        routing="round-robin",
        weights=(),
        subscriptions={},
        durability="process",
        error_destination=None,
        expiration_policy=DISCARD,
        forwarding="partitioned",
        store_enabled=True,
        promoted_properties=(),
        unit_of_order_routing="hash",
        messages_limit_override=UNLIMITED,
        message_logging_enabled=False,
        quota=None,
        limited=frozenset(),
        compressions={},
        follows_servers=False,
        pauses=Pauses(),
    )


def _begin_life_cycle(domain: Domain, wanted: Destination) -> None:
    """The life-cycle log is switched on: its table names the messages that are sent from now on."""
    if not wanted.message_logging_enabled:
        return
    messages, table = domain.log(wanted.name).refresh(), domain.life_cycle(wanted.name)
    if table is not None and messages.destination.message_logging_enabled:
        return
    entry = domain.register.entry(wanted.name)
    assert entry is not None
    create_table(domain, entry.life_cycle, LIFE_CYCLE_SCHEMA, _of_history(wanted))
    table = domain.life_cycle(wanted.name)
    assert table is not None
    now, last = now_ms(), {m: messages.last_sequence(m) for m in messages.numbered_members()}
    positions = [
        {"txn": {"appId": sent_id(messages.table_id, m), "version": sequence, "lastUpdated": now}}
        for m, sequence in last.items()
    ]
    if positions:
        commit(table, lambda snapshot: Decision("WRITE", positions, {"mode": "Append"}))


def create_table(domain: Domain, path: str, schema: pa.Schema, destination: Destination) -> None:
    """Leaves an existing table unchanged."""
    configuration = {
        "delta.logRetentionDuration": "interval 1 days",
        **removed_retention(destination),
        "delta.enableExpiredLogCleanup": "false",  # housekeeping does it
        **destination.to_configuration(),
    }
    promoted = PromotedColumns.of(destination.promoted_properties).fields
    columns = pa.schema([*schema, *PARTITION_SCHEMA, *promoted])
    data = first_commit(destination.name, columns, PARTITION_SCHEMA.names, configuration, now_ms())
    domain.storage.child(path).create(commit_path(0), data)  # which makes its directory, also where it was deleted
    domain.storage.sync([f"{path}/{commit_path(0)}"])


def change_destination(domain: Domain, wanted: Destination, empty: Callable[[str, int], bool]) -> DeclarationChange:
    def full_member(snapshot: Snapshot) -> int | None:
        """The first member to remove that still holds messages."""
        now = snapshot.destination
        if now.same_declaration(wanted):
            return None
        removed = _removed(snapshot, wanted)
        return next((m for m in removed if snapshot.last_sequence(m) and not empty(wanted.name, m)), None)

    _begin_life_cycle(domain, wanted)
    states = ServerStates.of(domain, wanted)
    log = domain.log(wanted.name)
    try:
        done = commit_prepared(log, full_member, partial(decide_change, wanted, states=states))
    except MemberRemovalError:
        commit(log, partial(decide_leaving, wanted))
        raise
    if done is None:
        return DeclarationChange(wanted.name, "unchanged")
    _follow_states(domain, wanted, states)
    return DeclarationChange(wanted.name, "changed", done.decision.difference)


@dataclass(frozen=True)
class ServerStates:
    """What the domain knows of its servers, for the members that come to them: which are stopped, the terms of their leases, and what
    is paused on them."""

    stopped: Mapping[str, int] = field(default_factory=dict)
    terms: Mapping[str, LeaseTerm] = field(default_factory=dict)
    paused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(domain: Domain, wanted: Destination) -> ServerStates:
        if not wanted.servers:
            return ServerStates(paused=domain.servers.paused())
        terms = {server: known.term for server, known in domain.terms.newest().items()}
        return ServerStates(domain.servers.stopped(), terms, domain.servers.paused())

    def pauses_of(self, destination: Destination, epoch: int) -> Pauses:
        """With those of its servers. Messages of a replicated topic's member belong to the subscriptions on all servers, so their
        consumption cannot be paused on one."""
        paused = self.paused
        if destination.is_replicated:
            paused = {s: {o: at for o, at in own.items() if o != CONSUMPTION} for s, own in paused.items()}
        return destination.pauses.of_servers(paused, destination.members_on, epoch)

    def on_new(self, destination: Destination, servers: Collection[str]) -> Destination:
        """The destination, for which these servers are new."""
        stopped = {server: since for server, since in self.stopped.items() if server in servers}
        terms = {server: term for server, term in self.terms.items() if server in servers}
        return attrs.evolve(
            destination,
            stopped={**destination.stopped, **stopped},
            terms={**destination.terms, **terms},
            pauses=self.pauses_of(destination, destination.epoch),
        )


NOTHING_KNOWN = ServerStates()


def _follow_states(domain: Domain, wanted: Destination, known: ServerStates) -> None:
    """An administrator who stops or starts a server, and a lease that lapses, change the tables that they find. One that comes to the
    server at that moment looks again once it can be found: until nothing has changed since its own commit."""
    while (now := ServerStates.of(domain, wanted)) != known:
        commit(domain.log(wanted.name), partial(_decide_states, now))
        known = now


def follow_states(domain: Domain, name: str) -> bool:
    """The destination gets what the domain knows of its servers now. False when it had that."""
    table = domain.log(name)
    states = ServerStates.of(domain, table.refresh().destination)
    return commit(table, partial(_decide_states, states)) is not None


def _decide_states(states: ServerStates, snapshot: Snapshot) -> Decision | None:
    """Pure. A table never goes back to an earlier term."""
    now = snapshot.destination
    on = now.servers_in_use()
    terms = {
        s: term for s, term in states.terms.items() if s in on and term.number > now.terms.get(s, LeaseTerm()).number
    }
    stopped = {s: since for s, since in states.stopped.items() if s in on}
    pauses = states.pauses_of(now, now.epoch + 1)
    after = attrs.evolve(now, stopped=stopped, terms={**now.terms, **terms}, pauses=pauses)
    if after == now:
        return None
    after = with_outages(snapshot, attrs.evolve(after, epoch=now.epoch + 1))
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])


@dataclass(frozen=True)
class ChangeDecision(Decision):
    difference: str = ""


def decide_change(
    wanted: Destination, snapshot: Snapshot, full_member: int | None, states: ServerStates = NOTHING_KNOWN
) -> ChangeDecision | None:
    """Pure. Raises InvalidDestinationError or MemberRemovalError when the destination cannot become `wanted`."""
    now = snapshot.destination
    if now.same_declaration(wanted):
        if not now.leaving:
            return None
        stay = now.with_leaving((), snapshot.last_sequence)
        return ChangeDecision("SET TBLPROPERTIES", [metadata_action(snapshot, stay)], difference="no member leaves")
    if now.kind.removeprefix("distributed-") != wanted.kind.removeprefix("distributed-"):
        raise InvalidDestinationError(
            f"destination {wanted.name} is a {now.kind} and cannot become a {wanted.kind}: declare it under another name"
        )
    if now.forwarding != wanted.forwarding:
        raise InvalidDestinationError(
            f"destination {wanted.name} is a {now.forwarding} distributed topic and cannot become a {wanted.forwarding} one: its "
            "subscriptions have their positions elsewhere. Declare another topic"
        )
    if _is_below_first_members(now, wanted):
        slots = now.first_members
        raise MemberRemovalError(
            f"destination {wanted.name} was made with {slots} members, to which its units of order are bound: it can "
            f"grow beyond {slots} and shrink back to {slots}, but not to {wanted.members}"
        )
    if full_member is not None:
        raise MemberRemovalError(
            f"destination {wanted.name} has {_members_of(now)} and is to have {_members_of(wanted)}, but member "
            f"{full_member} still holds messages. It gets no new ones, and its units of order have moved to the others, or "
            f"follow when what they wait for there is consumed: consume its messages, move them (`jmsq move "
            f"{now.name} {now.name} --member {full_member} --to-member …`), or purge them (`jmsq purge "
            f"{now.name} --member {full_member}`), then repeat this"
        )
    after = now.changed_to(wanted, snapshot.numbered_members(), snapshot.last_sequence)
    new = set(after.servers_in_use()) - set(now.servers)
    after = states.on_new(attrs.evolve(after, subscriptions=_with_floors(snapshot, after.member_ids)), new)
    _check_subscriptions(now, after)
    after = with_outages(snapshot, after)
    ended = ended_paths(paths_of_lost(snapshot.paths, after.member_ids))
    return ChangeDecision(
        "SET TBLPROPERTIES", [metadata_action(snapshot, after), *ended], difference=_difference(now, wanted)
    )


def _check_subscriptions(now: Destination, after: Destination) -> None:
    """Durable subscriptions on a server of a replicated topic stay possible. Raises MemberRemovalError or
    InvalidDestinationError."""
    for name in sorted(now.subscriptions) if after.is_replicated else ():
        server = server_of_subscription(name)
        if server not in after.servers_in_use():
            raise MemberRemovalError(
                f"destination {now.name} has the durable subscription {name} on server {server}, which it is to leave: drop "
                f"it (`jmsq subscriptions --drop {now.name}/{name}`), then repeat this"
            )
        check_durable(after, name)


def decide_leaving(wanted: Destination, snapshot: Snapshot) -> Decision | None:
    """Pure. The members that `wanted` lacks get nothing new, until they are empty and can be removed."""
    now = snapshot.destination
    if _is_below_first_members(now, wanted):
        return None  # refused for good: it changes nothing
    removed = frozenset() if now.same_declaration(wanted) else frozenset(_removed(snapshot, wanted))
    if removed <= now.leaving or removed >= set(now.member_ids):
        return None
    after = now.with_leaving(removed, snapshot.last_sequence)
    ended = ended_paths(paths_of_lost(snapshot.paths, set(now.member_ids) - removed))
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after), *ended])


def _is_below_first_members(now: Destination, wanted: Destination) -> bool:
    return wanted.members < now.first_members and not wanted.servers


def _removed(snapshot: Snapshot, wanted: Destination) -> list[int]:
    kept = snapshot.destination.changed_to(wanted, snapshot.numbered_members()).member_ids
    return [member for member in snapshot.destination.member_ids if member not in kept]


def _members_of(destination: Destination) -> str:
    on = f" (on {', '.join(destination.servers)})" if destination.servers else ""
    return f"{destination.members} members{on}"


def _with_floors(snapshot: Snapshot, members: Iterable[int]) -> dict[str, Subscription]:
    """The subscriptions, with a floor for each member that is added again. Such a member was empty when it was removed,
    and a subscription made since then begins after its messages."""
    now = snapshot.destination
    added = [m for m in members if m not in now.member_ids]
    again = {m: snapshot.last_sequence(m) for m in added if snapshot.last_sequence(m)}
    return {name: replace(made, floors={**made.floors, **again}) for name, made in now.subscriptions.items()}


def _difference(old: Destination, new: Destination) -> str:
    fields = [row.field for row in KEYS.values()]
    changed = [f"{f}: {getattr(old, f)} -> {getattr(new, f)}" for f in fields if getattr(old, f) != getattr(new, f)]
    return ", ".join(changed) or "the same values, others of them from the template"


# -- pausing and resuming ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PauseOrder:
    """Which operations to pause or to resume. `members` None: of the whole destination."""

    operations: tuple[str, ...]
    members: tuple[int, ...] | None
    resume: bool = False


def set_pauses(log: DeltaLog, order: PauseOrder) -> bool:
    """False when nothing changed. Whatever commits after this returns obeys the pauses."""
    now = now_ms()
    return commit(log, lambda snapshot: decide_pauses(snapshot, order, now)) is not None


def decide_pauses(snapshot: Snapshot, order: PauseOrder, now: int) -> Decision | None:
    """Pure. None when it is so already. Routing follows the pauses of senders, so those begin a new epoch."""
    declared = snapshot.destination
    routes = any(operation in (PRODUCTION, INSERTION) for operation in order.operations)
    epoch = declared.epoch + 1 if routes else declared.epoch
    after = _changed(declared.pauses, order, epoch, now)
    if after == declared.pauses:
        return None
    changed = attrs.evolve(declared, pauses=after, epoch=epoch)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, changed)])


def _changed(pauses: Pauses, order: PauseOrder, epoch: int, now: int) -> Pauses:
    operations: Collection[str] = order.operations
    if order.resume:
        return pauses.resume(operations, order.members)
    return pauses.pause(operations, order.members, epoch, now)


# -- durable subscriptions ---------------------------------------------------------------------------------------------


def create_subscription(
    log: DeltaLog, name: str, floors: Callable[[Snapshot], dict[int, int]], selector: str | None = None
) -> Subscription:
    """The durable subscription `name`, made if it is new. `floors` is pure. Because this is a commit, a purge either sees
    the subscription or was committed before it."""
    check_kept(name)
    now = now_ms()
    found: Subscription | None = None

    def decide(snapshot: Snapshot) -> Decision | None:
        nonlocal found
        declared = snapshot.destination
        known = declared.subscriptions.get(name)
        found = known or Subscription(name, floors(snapshot), now, selector)
        if known is not None:
            return None
        after = attrs.evolve(declared, subscriptions={**declared.subscriptions, name: found})
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    commit(log, decide)
    assert found is not None  # of the attempt that counted: by now it may have been dropped again
    return found


def drop_subscription(log: DeltaLog, name: str) -> bool:
    """False when there is no such subscription."""

    def decide(snapshot: Snapshot) -> Decision | None:
        declared = snapshot.destination
        if name not in declared.subscriptions:
            return None
        rest = {n: s for n, s in declared.subscriptions.items() if n != name}
        slots = declared.slots and declared.slots.without(name)
        after = attrs.evolve(declared, subscriptions=rest, slots=slots)
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    return commit(log, decide) is not None


# -- which destination is the error destination of which ---------------------------------------------------------------


def check_error_destinations(domain: Domain, declared: Sequence[Destination]) -> None:
    """An error destination is another queue: a topic keeps nothing that no subscription wants. ModuleFileError."""
    kinds = {d.name: d.kind for d in declared}
    for destination in declared:
        name = destination.error_destination
        if name is None:
            continue
        kind = kinds.get(name)
        if kind is None and name in domain.destinations():
            kind = domain.log(name).refresh().destination.kind
        wrong = "is itself" if name == destination.name else f"is a {kind}" if kind and kind.endswith("topic") else ""
        wrong = wrong or ("" if kind else "does not exist")
        if wrong:
            raise ModuleFileError(
                f"destination {destination.name}: errorDestination {name!r} {wrong}, but must be another queue of this "
                "domain, in this file or applied before"
            )
    _warn_of_circles(domain, declared)


def _warn_of_circles(domain: Domain, declared: Sequence[Destination]) -> None:
    """A message that fails in each of such queues goes round for ever."""
    targets = {d.name: d.error_destination for d in declared}
    told: set[str] = set()
    for first in targets:
        circle, name = [first], targets[first]
        while name is not None and name not in circle:
            circle.append(name)
            if name not in targets:
                targets = {**targets, name: _error_destination_of(domain, name)}
            name = targets[name]
        if name == first and told.isdisjoint(circle):
            told.update(circle)
            log.warning(
                "%s: each is the errorDestination of the one before it, so a message that fails in all of them goes round for "
                "ever: give one of them an errorDestination that nothing moves out of, or none",
                " -> ".join([*circle, first]),
            )


def _error_destination_of(domain: Domain, name: str) -> str | None:
    """None also when it cannot be read: another destination's damage prevents no change of this one."""
    try:
        return domain.log(name).refresh().destination.error_destination
    except (JmsqError, OSError) as error:
        log.warning("whether %s has an errorDestination is unknown: %s", name, error)
        return None


def warn_of_narrow_ones(domain: Domain, declared: Sequence[Destination], changed: Collection[str]) -> None:
    """Log the error destinations that take less than a destination whose messages they shall take. `declared` are applied, and of
    these `changed` may be error destinations of others."""
    known = {one.name: one for one in declared}
    others = [one for one in _existing(domain, changed, known) if one.error_destination in changed]
    for source in [*declared, *others]:
        name = source.error_destination
        if name is not None and (target := known.get(name) or domain.log(name).refresh().destination):
            for narrow in _narrow(domain, source, target):
                log.warning(
                    "destination %s has the errorDestination %s, which takes less: %s. A larger message that fails is refused for "
                    "good there: it stays in %s, and `jmsq stat` lists it. Declare the error destination at least as large",
                    source.name,
                    name,
                    narrow,
                    source.name,
                )


def _narrow(domain: Domain, source: Destination, target: Destination) -> Iterator[str]:
    most = source.max_message_bytes
    if target.max_message_bytes < most:
        yield f"its maxMessageSize is {target.max_message_bytes} bytes, and that of {source.name} is {most}"
    for quota in sorted(target.quotas - source.quotas):
        limit = domain.quotas.limit(quota)
        if 0 <= limit.bytes < most:
            yield f"its quota {quota} has room for {limit.bytes} bytes, and the maxMessageSize of {source.name} is {most}"


def _existing(domain: Domain, wanted: Collection[str], known: Collection[str]) -> Iterator[Destination]:
    """The destinations that are not `known`, if any are of interest to those that are wanted. One that cannot be read is left out,
    with a warning that names it: another destination's damage prevents no change of this one."""
    for name in domain.register.names() if wanted else ():
        try:
            entry = domain.register.entry(name)
            if name not in known and entry is not None and entry.dropping is None:
                yield domain.log(name).refresh().destination
        except InvalidDestinationError:  # dropped meanwhile
            continue
        except (JmsqError, OSError) as error:
            log.warning(
                "whether %s is the errorDestination of %s is unknown: %s", ", ".join(sorted(wanted)), name, error
            )


def referring(domain: Domain, name: str) -> list[str]:
    """The destinations whose error destination is `name`."""
    return [one.name for one in _existing(domain, [name], [name]) if one.error_destination == name]
