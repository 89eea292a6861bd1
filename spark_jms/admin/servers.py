"""The servers of a domain and its open transactions, as people see and change them.

Features: C14, D1, D4, M10, T14, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from spark_jms.admin.destinations import check_operations
from spark_jms.claims.servers.stores import open_stores, why_silent
from spark_jms.claims.transactions.transaction import Coordinators, open_transactions
from spark_jms.claims.upkeep.views import is_empty, moment
from spark_jms.core.destinations.pause import CONSUMPTION, OPERATIONS
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.servers import HOME, LeaseFile
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError, MemberUnavailableError
from spark_jms.log.destinations.all_servers import remove_server as removed
from spark_jms.log.destinations.declarations import follow_states
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import ServerLeases, decide_stop
from spark_jms.log.tables.commit import commit
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.table import MissingExtraError
from spark_jms.store import Store
from spark_jms.store.errors import shown_uri

ANSWER_S = 5.0
LOOK_S = 3.0  # of one call, where several stores are asked in turn
DAMAGED = "damaged"


@dataclass(frozen=True)
class ServerRow:
    """`store` as declared, without options and passwords; `members` as `destination/member`. `state` is up or down: down while
    an administrator has `stopped` it, or its lease has `lapsed`, each with its beginning. `lease_age_s`: since the last renewal,
    by the clocks of two hosts; None when no process has renewed it. `away`: why its store does not answer this command, "" while
    it does."""

    server: str
    store: str
    members: tuple[str, ...]
    state: str
    stopped: datetime | None
    lapsed: datetime | None
    lease_age_s: float | None
    away: str

    @property
    def reason(self) -> str:
        """Why it is down, since when; and what this command saw itself."""
        stopped = f"stopped since {self.stopped:%Y-%m-%d %H:%M:%SZ}" if self.stopped else ""
        lapsed = f"away since {self.lapsed:%Y-%m-%d %H:%M:%SZ}" if self.lapsed else ""
        return "; ".join(filter(None, (stopped, lapsed, self.away))) or "answers"


@dataclass(frozen=True)
class PausedServer:
    """The result of `pause_server` and `resume_server`. `paused` are the operations that are paused now, `changed` the destinations
    that the call has changed, `consumed` those on it whose consumption continues: replicated topics."""

    server: str
    paused: tuple[str, ...]
    changed: tuple[str, ...]
    consumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class TransactionRow:
    """An open transaction, as `jmsq transactions` shows it. `waits`: the steps that are left of a transaction that is decided, and
    what keeps them back. `owner_lives`: its own process completes it; otherwise any other does. Of a coordinator that cannot be
    read there is a row too, `DAMAGED`: `transaction` names its record, `waits` the damage, and the rest is unknown."""

    transaction: str
    state: str
    made: datetime | None
    owner: str
    owner_lives: bool
    targets: tuple[str, ...]
    origins: tuple[str, ...]
    waits: tuple[str, ...]


def list_servers(domain: Domain, stores: Store | None = None) -> list[ServerRow]:
    """Asks all stores at once, those of `stores` or new connections, for at most ANSWER_S."""
    members: dict[str, list[str]] = {}
    for name in domain.destinations():
        declared = domain.log(name).refresh().destination
        for member in declared.member_ids:
            members.setdefault(declared.server_of(member), []).append(f"{name}/{member}")
    names = [HOME, *domain.servers.names()]
    away = _why_away(domain, names, stores)
    stopped, lapsed, leases = domain.servers.stopped(), domain.terms.lapsed(), ServerLeases(domain.storage)
    rows = []
    for server in names:
        declared_store = domain.store if server == HOME else domain.servers.entry(server).store
        lapsed_ms = lapsed[server].lapsed_ms if server in lapsed else None
        rows.append(
            ServerRow(
                server,
                shown_uri(declared_store).partition("?")[0],
                tuple(members.get(server, ())),
                "down" if server in stopped or lapsed_ms is not None else "up",
                moment(stopped[server]) if server in stopped else None,
                None if lapsed_ms is None else moment(lapsed_ms),
                _age_s(leases.read(server)),
                away[server],
            )
        )
    return rows


def silent_servers(domain: Domain, store: Store, destinations: Iterable[str]) -> dict[str, str]:
    """Of the servers that these destinations are on, those whose stores do not answer within LOOK_S: server -> why."""
    declared = (domain.log(name).snapshot.destination for name in destinations)
    servers = dict.fromkeys(server for one in declared for server in one.servers_in_use())
    found = {server: why_silent(store, server, LOOK_S) for server in servers}
    return {server: why for server, why in found.items() if why}


def check_answers(domain: Domain, store: Store, addresses: Iterable[str]) -> None:
    """Raises MemberUnavailableError when a store does not answer that has a part of the figures of these destinations or members."""
    needed: dict[str, DestinationAddress] = {}  # server -> the first that needs it
    for address in map(DestinationAddress.parse, addresses):
        declared = domain.log(address.destination).snapshot.destination
        named = address.server_in(declared)
        for server in declared.servers_in_use() if named is None else [named]:
            needed.setdefault(server, address)
    for server, address in needed.items():
        if why := why_silent(store, server, LOOK_S):
            raise MemberUnavailableError(
                f"{address}: server {server} is away, and only its store knows what consumers have finished there, so the figures "
                f"would be false: {why}. Ask again when it answers, or ask for server@{address.destination} of another one; "
                "`jmsq stat` shows the rest"
            )


def stop_server(domain: Domain, server: str) -> list[str]:
    """The destinations for which it is down now and was not before. Raises DomainError when there is no such server."""
    _check(domain, server)
    domain.servers.stop(server, now_ms())  # first: a destination that comes to it meanwhile finds it
    _check_still_there(domain, server)
    return _change(domain, server, domain.servers.stopped().get(server, now_ms()))


def start_server(domain: Domain, server: str) -> list[str]:
    """The destinations for which it is up again. Raises DomainError when there is no such server."""
    _check(domain, server)
    domain.servers.start(server)
    return _change(domain, server, None)


def pause_server(domain: Domain, server: str, operations: Iterable[str] = OPERATIONS) -> PausedServer:
    """Pause these operations of all members on a server, and of those that come to it later; not of temporary destinations. A pause
    that stands keeps its time. Raises OptionError, and DomainError when there is no such server."""
    return _pause(domain, server, operations, resume=False)


def resume_server(domain: Domain, server: str, operations: Iterable[str] = OPERATIONS) -> PausedServer:
    """The end of these. Pauses of destinations and of members stay. Raises what `pause_server` raises."""
    return _pause(domain, server, operations, resume=True)


def _pause(domain: Domain, server: str, operations: Iterable[str], *, resume: bool) -> PausedServer:
    wanted = check_operations(operations)
    if server != HOME:
        domain.servers.entry(server)
    try:
        standing = domain.servers.paused().get(server, {})
    except DomainError:
        if not resume or set(wanted) != set(OPERATIONS):
            raise
        standing = {}  # the file is damaged, and all of it ends
    kept = {operation: since_ms for operation, since_ms in standing.items() if not (resume and operation in wanted)}
    new = {} if resume else dict.fromkeys(wanted, now_ms())
    after = {operation: kept.get(operation, new.get(operation)) for operation in OPERATIONS}
    paused = {operation: since_ms for operation, since_ms in after.items() if since_ms is not None}
    domain.servers.pause(server, paused)  # first: a destination that comes to it meanwhile finds it
    _check_still_there(domain, server)
    done = "resumed" if resume else "paused"
    changed = _on_each(domain, f"{', '.join(wanted)} of server {server} is {done}", partial(follow_states, domain))
    consumed = _replicated_on(domain, server) if CONSUMPTION in paused else ()
    return PausedServer(server, tuple(paused), tuple(changed), tuple(consumed))


def _replicated_on(domain: Domain, server: str) -> Iterable[str]:
    for name in domain.destinations():
        declared = domain.log(name).snapshot.destination
        if declared.is_replicated and declared.members_on(server):
            yield name


def remove_server(domain: Domain, store: Store, server: str) -> list[str]:
    """The destinations that have left it. Raises DomainError when there is no such server or a destination names it, and
    MemberRemovalError while messages are on it."""
    if server == HOME:
        raise DomainError(f"server {HOME} is the domain's own store and cannot be removed")
    return removed(domain, server, partial(is_empty, domain, store))


def transactions(domain: Domain, store: Store) -> list[TransactionRow]:
    """Oldest first, behind coordinators that cannot be read. Changes nothing."""
    looks = open_transactions(domain, store)
    damaged = [
        TransactionRow(record, DAMAGED, None, "", False, (), (), (problem,))
        for record, problem in looks.damaged.items()
    ]
    return damaged + [
        TransactionRow(
            str(look.transaction.ticket),
            look.transaction.state.value,
            moment(look.transaction.made_ms),
            look.transaction.owner,
            look.owner_lives,
            tuple(target.destination for target in look.transaction.targets),
            tuple(sorted({origin.destination for origin in look.transaction.origins})),
            look.waits,
        )
        for look in looks.open
    ]


def decide_transaction(domain: Domain, store: Store, transaction: str, *, commit: bool) -> tuple[str, ...]:
    """A transaction in doubt whose database is lost. Returns why it does not end. Raises IllegalStateException."""
    coordinators = Coordinators(domain, store)
    try:
        return coordinators.force(transaction, commit=commit)
    finally:
        coordinators.close()


def complete_transactions(domain: Domain, store: Store) -> tuple[str, ...]:
    """Those whose owners are dead, as housekeeping does. Returns why some do not end."""
    coordinators = Coordinators(domain, store)
    try:
        return coordinators.recover()
    finally:
        coordinators.close()


def _check(domain: Domain, server: str) -> None:
    if server == HOME:
        raise DomainError(
            f"server {HOME} is the domain's own store and cannot be stopped: pause it with `jmsq pause --server {HOME}`"
        )
    domain.servers.entry(server)


def _check_still_there(domain: Domain, server: str) -> None:
    """Raises DomainError when it was removed meanwhile: one that gets its name later must not find what was just written."""
    if server != HOME and server not in domain.servers.names():
        domain.servers.forget_states(server)
        domain.servers.entry(server)


def _change(domain: Domain, server: str, since_ms: int | None) -> list[str]:
    def change(name: str) -> bool:
        return commit(domain.log(name), lambda s: decide_stop(s, server, since_ms)) is not None

    return _on_each(domain, f"server {server} is {'started' if since_ms is None else 'stopped'}", change)


def _on_each(domain: Domain, what: str, change: Callable[[str], bool]) -> list[str]:
    """The destinations that it has changed. The first error is raised once all destinations have been tried: one that cannot be read
    keeps no other from its state. Raises DomainError when the root is gone, where none could be tried."""
    changed: list[str] = []
    failed: list[tuple[str, Exception]] = []
    for name in domain.registered():
        try:
            with suppress(InvalidDestinationError):  # it is being dropped
                if change(name):
                    changed.append(name)
        except (JmsqError, OSError) as error:
            failed.append((name, error))
    if failed:
        name, first = failed[0]
        raise DomainError(
            f"{what}, and all destinations but {len(failed)} know it. {name}: {type(first).__name__}: {first}. Mend that, and repeat "
            "the command"
        ) from first
    return changed


def _age_s(lease: LeaseFile) -> float | None:
    return max(now_ms() - lease.at_ms, 0) / 1000 if lease.token else None


def _why_away(domain: Domain, servers: Sequence[str], given: Store | None) -> dict[str, str]:
    """server -> why its store does not answer, or ""."""
    opened = open_stores(domain, ANSWER_S) if given is None else nullcontext(given)
    with opened as stores, ThreadPoolExecutor(len(servers)) as threads:
        return dict(zip(servers, threads.map(partial(_why_silent, stores), servers), strict=True))


def _why_silent(stores: Store, server: str) -> str:
    try:
        return why_silent(stores, server, ANSWER_S)
    except MissingExtraError as error:  # this host may lack what one server's store needs
        return str(error)
