"""What destinations have from the servers of their domain: `servers: all`, compression by default; and servers that are removed.

`servers: all` stands for the servers that the domain has, without `home` unless it has no other. The table of such a destination has
their names, as that of any other, and a note that it follows: `apply` brings it to each server that is declared later, and its member
leaves a server that is removed. That is how the texts target a uniform distributed destination to a cluster.

What happens when a server is removed:

    1  its file says so          `apply` refuses destinations that name it, and `all` stands for the others
    2  members leave it          of destinations that follow; one that is not empty leaves first, and the removal is refused by name
    3  its files are deleted     its own one last: until then the removal is repeated by the next one

An `apply` that read the file before step 1 and brings a destination to the server afterwards looks at the file again and fails; the
removal looks at all destinations after step 1. So one of the two finds the other.

Features: D1, T1, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial

import attrs

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError, MemberRemovalError
from spark_jms.log.destinations.declarations import DeclarationChange, change_destination
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import LEASES, SERVERS, TERMS, home_entry
from spark_jms.log.destinations.store_places import server_store_uri
from spark_jms.log.limits.quota import QUOTAS
from spark_jms.log.tables.commit import Decision, commit, metadata_action
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.destination import ALL_SERVERS
from spark_jms.settings.quota import SERVER_QUOTA

Empty = Callable[[str, int], bool]


def all_servers(domain: Domain) -> tuple[str, ...]:
    """What `all` stands for now."""
    names = (name for name in domain.servers.names() if not domain.servers.entry(name).removed)
    return tuple(names) or (HOME,)


def resolved(domain: Domain, wanted: Destination) -> Destination:
    """The destination with the names of its servers."""
    return _on(wanted, all_servers(domain)) if wanted.servers == ALL_SERVERS else wanted


def _on(destination: Destination, servers: tuple[str, ...]) -> Destination:
    return attrs.evolve(
        destination, servers=servers, members=len(servers), placement=None, leaving=frozenset(), follows_servers=True
    )


def follow_servers(domain: Domain, declared: Container[str], empty: Empty) -> list[DeclarationChange]:
    """Of the destinations that follow and are not `declared`: those that had to change. Raises MemberRemovalError when a member is
    not empty; all others have changed then."""
    servers, changes, full = all_servers(domain), list[DeclarationChange](), list[MemberRemovalError]()
    for name in domain.destinations():
        now = domain.log(name).refresh().destination
        is_there = set(now.servers) == set(servers) and not now.leaving
        if name in declared or not now.follows_servers or is_there:
            continue
        try:
            change = change_destination(domain, _on(now, servers), empty)
        except MemberRemovalError as error:
            full.append(error)
        else:
            changes += [change] if change.what == "changed" else []
    if full:
        raise full[0]
    return changes


def follow_compressions(domain: Domain) -> None:
    """Every destination compresses bodies on its servers as these say now, where it does not say it itself. Repeatable."""
    found = {name: domain.servers.entry(name).compression for name in domain.servers.names()}
    found[HOME] = home_entry(domain.declaration).compression
    known = {server: options for server, options in found.items() if options is not None}
    for name in domain.destinations():
        commit(domain.log(name), partial(_decide_compressions, known))


def _decide_compressions(known: Mapping[str, str], snapshot: Snapshot) -> Decision | None:
    """Pure. `known`: by server. None when the destination knows them."""
    declared = snapshot.destination
    on = {server: known[server] for server in declared.servers_in_use() if server in known}
    if on == declared.compressions:
        return None
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, attrs.evolve(declared, compressions=on))])


def check_still_there(domain: Domain, wanted: Destination) -> None:
    """After the destination has come to its servers. Raises DomainError when one was removed meanwhile."""
    for server in wanted.servers:
        if server != HOME and domain.servers.entry(server).removed:
            raise DomainError(
                f"server {server} is being removed, and destination {wanted.name} came to it meanwhile: take the server out of the "
                "module file, and apply it again"
            )


def remove_server(domain: Domain, server: str, empty: Empty) -> list[str]:
    """The destinations that have left it. Raises DomainError when there is no such server, or a destination names it, and
    MemberRemovalError while a member on it is not empty: it leaves, and the server is removed by a later call."""
    entry = domain.servers.entry(server)
    check_not_named(domain, server)
    if not entry.removed:
        domain.servers.put(server, replace(entry, removed=True))
    try:
        check_not_named(domain, server)
        changes = follow_servers(domain, (), empty)
        left = [
            name for name in domain.destinations() if server in domain.log(name).refresh().destination.servers_in_use()
        ]
        if left:
            raise DomainError(f"server {server} still has members of {', '.join(left)}: repeat the command")
    except (JmsqError, OSError):
        domain.servers.put(server, replace(entry, removed=False))
        raise
    own = server_store_uri(domain.root, server, entry.store, domain.id)
    if own == f"{domain.root}/_jmsq/stores/{server}":  # others are their owner's
        domain.storage.delete_all(f"_jmsq/stores/{server}")
    domain.storage.delete_all(f"{TERMS}/{server}")
    domain.storage.delete(f"{LEASES}/{server}")
    domain.servers.forget_states(server)
    domain.storage.delete(f"{QUOTAS}/{SERVER_QUOTA}{server}")
    domain.quotas.forget_quota(SERVER_QUOTA + server)
    domain.set_server_scan_intervals({server: None})
    domain.storage.delete(f"{SERVERS}/{server}")
    domain.servers.forget_states(server)  # of a command that had found the server
    return [change.destination for change in changes]


def check_not_named(domain: Domain, server: str) -> None:
    """Raises DomainError when a destination names the server itself."""
    naming = []
    for name in domain.destinations():
        try:
            declared = domain.log(name).refresh().destination
        except InvalidDestinationError:  # it is dropped
            continue
        if server in declared.servers and not declared.follows_servers:
            naming.append(name)
    if naming:
        raise DomainError(
            f"server {server} cannot be removed, because {', '.join(naming)} name(s) it: take it out of their `servers` in the module "
            "file, and apply it; their members there leave when they are empty"
        )
