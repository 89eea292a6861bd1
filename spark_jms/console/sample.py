"""What the page shows of one moment. Reads the domain, its store, and the daemons of a replicated store (M8)."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.admin.statistics import DestinationStatistics, collect
from spark_jms.claims import views
from spark_jms.claims.views import ClaimRow
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.store import SessionInfo, Store, StoreError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo
from spark_jms.store.shown_uri import shown_uri


@dataclass(frozen=True)
class ClusterSample:
    """Of a replicated store; `error` says why the daemons could not be asked."""

    daemons: tuple[DaemonInfo, ...] = ()
    regions: tuple[RegionInfo, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class DomainSample:
    time_ms: int
    root: str
    store: str
    destinations: tuple[DestinationStatistics, ...]
    claims: tuple[ClaimRow, ...]
    servers: tuple[SessionInfo, ...]  # the live sessions of the store
    cluster: ClusterSample | None = None  # None: the store is not a replicated one


def take(domain: Domain, store: Store) -> DomainSample:
    names = domain.destinations()
    return DomainSample(
        now_ms(),
        domain.root,
        shown_uri(domain.store),
        tuple(collect(domain, store, name) for name in names),
        tuple(claim for name in names for claim in views.claims(domain, store, name)),
        tuple(sorted(store.sessions().values(), key=lambda session: session.label)),
        _cluster(domain.store),
    )


def _cluster(store: str) -> ClusterSample | None:
    if not store.startswith("replicated:"):
        return None
    from spark_jms.store.records.settings import parse_replicated

    settings = parse_replicated(store)
    try:
        with Admin(settings.directory, settings.localindex) as admin:
            return ClusterSample(tuple(admin.daemons()), tuple(admin.regions()))
    except StoreError as error:
        return ClusterSample(error=str(error))
