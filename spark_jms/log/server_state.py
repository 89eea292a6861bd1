"""Taking a server down and up: a commit to the table of each destination that is on it.

A server is down for a destination once its table says so: because an administrator has stopped it, or because its lease has
lapsed (core/server_lease.py). The two are kept apart, so the end of one does not end the other. The commit begins a new routing
epoch, so it is ordered with the messages: senders that planned before it route again at their commit, and whatever commits
after it obeys it. Of a replicated topic it also begins or ends an outage (core/outages.py).

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from spark_jms.core.destination import Destination
from spark_jms.core.lease_term import HELD, LeaseTerm
from spark_jms.core.placement import HOME
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError
from spark_jms.log.commit import Decision, commit
from spark_jms.log.declarations import with_outages
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.metadata import metadata_action
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
    """The first error is raised once all destinations have been tried: one that cannot be read keeps no other from its state. Raises
    DomainError when the root is gone, where none could be tried."""
    changed: list[str] = []
    failed: list[tuple[str, Exception]] = []
    for name in domain.registered():
        try:
            with suppress(InvalidDestinationError):  # it is being dropped
                if commit(domain.log(name), lambda s: decide_stop(s, server, since_ms)) is not None:
                    changed.append(name)
        except (JmsqError, OSError) as error:
            failed.append((name, error))
    if failed:
        name, first = failed[0]
        raise DomainError(
            f"server {server} is {'started' if since_ms is None else 'stopped'}, and all destinations but {len(failed)} know it. "
            f"{name}: {type(first).__name__}: {first}. Mend that, and repeat the command"
        ) from first
    return changed


def decide_stop(snapshot: Snapshot, server: str, since_ms: int | None) -> Decision | None:
    """Pure. `since_ms` None: the administrator has started it. None when it is so already, or the destination is not on the
    server."""
    declared = snapshot.destination
    stopped = {name: since for name, since in declared.stopped.items() if name != server}
    if since_ms is not None and server in declared.servers_in_use():
        stopped[server] = declared.stopped.get(server, since_ms)
    return _decide(snapshot, attrs.evolve(declared, stopped=stopped))


def follow_term(log: DeltaLog, server: str, term: LeaseTerm) -> bool:
    """Commit the newest term of a server's lease to a destination's table. False when the table had it, or a later one."""
    return commit(log, lambda snapshot: decide_term(snapshot, server, term)) is not None


def decide_term(snapshot: Snapshot, server: str, term: LeaseTerm) -> Decision | None:
    """Pure. None when the table has this term or a later one, or the destination is not on the server."""
    declared = snapshot.destination
    if server not in declared.servers_in_use() or declared.terms.get(server, HELD).number >= term.number:
        return None
    return _decide(snapshot, attrs.evolve(declared, terms={**declared.terms, server: term}))


def _decide(snapshot: Snapshot, after: Destination) -> Decision | None:
    """Every change of `down` is decided here."""
    before = snapshot.destination
    if after == before:
        return None
    after = with_outages(snapshot, attrs.evolve(after, epoch=before.epoch + 1))
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])
