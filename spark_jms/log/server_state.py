"""Stopping and starting a server: a commit to the table of each destination that is on it (D4).

A server is down for a destination once its table says so. The commit begins a new routing epoch, so it is ordered with the
messages: senders that planned before it route again at their commit, and whatever commits after it obeys it.
"""

from __future__ import annotations

import attrs

from spark_jms.core.placement import HOME
from spark_jms.errors import DomainError
from spark_jms.log.commit import Decision, commit
from spark_jms.log.declarations import metadata_action
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms


def stop_server(domain: Domain, server: str) -> list[str]:
    """The destinations for which it is down now and was not before. Raises DomainError when there is no such server."""
    _check(domain, server)
    domain.servers.stop(server, now_ms())  # first: a destination that comes to it meanwhile finds it
    return _change(domain, server, domain.servers.stopped().get(server, now_ms()))


def start_server(domain: Domain, server: str) -> list[str]:
    """The destinations for which it is up again. Raises DomainError when there is no such server."""
    _check(domain, server)
    domain.servers.start(server)
    return _change(domain, server, None)


def _check(domain: Domain, server: str) -> None:
    if server == HOME:
        raise DomainError(
            f"server {HOME} is the domain's own store and cannot be stopped: pause its destinations with `jmsq pause`"
        )
    domain.servers.entry(server)


def _change(domain: Domain, server: str, since_ms: int | None) -> list[str]:
    names = domain.destinations()
    return [
        name for name in names if commit(domain.log(name), lambda s: decide_server(s, server, since_ms)) is not None
    ]


def decide_server(snapshot: Snapshot, server: str, since_ms: int | None) -> Decision | None:
    """Pure. `since_ms` None: the server is up. None when it is so already, or the destination is not on the server."""
    declared = snapshot.destination
    down = {name: since for name, since in declared.down.items() if name != server}
    if since_ms is not None and server in declared.servers_in_use():
        down[server] = declared.down.get(server, since_ms)
    if down == declared.down:
        return None
    changed = attrs.evolve(declared, down=down, epoch=declared.epoch + 1)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, changed)])
