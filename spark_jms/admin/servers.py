"""The servers of a domain as people see them (D1, M10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_jms.claims.lane import Lane, LaneBusyError
from spark_jms.claims.stores import open_stores, store_of
from spark_jms.claims.views import moment
from spark_jms.core.placement import HOME
from spark_jms.log.domain import Domain
from spark_jms.store import StoreError

ANSWER_S = 5.0


@dataclass(frozen=True)
class ServerRow:
    """`store` as declared, without options; `members` as `member@destination`; `stopped`: since when, by an administrator;
    `away`: why its store cannot be asked, "" while it answers."""

    server: str
    store: str
    members: tuple[str, ...]
    stopped: datetime | None
    away: str


def list_servers(domain: Domain) -> list[ServerRow]:
    """Asks each store, for at most ANSWER_S."""
    members: dict[str, list[str]] = {}
    for name in domain.destinations():
        declared = domain.log(name).refresh().destination
        for member in declared.member_ids:
            members.setdefault(declared.server_of(member), []).append(f"{member}@{name}")
    rows, stopped = [], domain.servers.stopped()
    for server in (HOME, *domain.servers.names()):
        declared_store = domain.store if server == HOME else domain.servers.entry(server).store
        shown = declared_store.partition("?")[0]
        since = moment(stopped[server]) if server in stopped else None
        rows.append(ServerRow(server, shown, tuple(members.get(server, ())), since, _why_away(domain, server)))
    return rows


def _why_away(domain: Domain, server: str) -> str:
    def ask() -> None:
        with open_stores(domain) as stores:
            store_of(stores, server).sessions()

    lane = Lane(f"server {server}")
    try:
        lane.run(ask, ANSWER_S)
    except LaneBusyError:
        return f"its store does not answer within {ANSWER_S:g} s"
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        lane.close()
    return ""
