"""A domain at one moment, for the console and for Prometheus. Only reads.

What cannot be read is named, and hides nothing else: a damaged destination, a server or daemons that do not answer.

Features: M5, M8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from spark_jms.admin.high_marks import HighMarkRow, high_marks
from spark_jms.admin.quota import QuotaRow, quota_names, quotas
from spark_jms.admin.servers import ServerRow, list_servers
from spark_jms.admin.service_reports import ServiceReport, service_reports
from spark_jms.admin.statistics import DestinationStatistics, collect
from spark_jms.admin.transactions import TransactionRow, transactions
from spark_jms.claims import views
from spark_jms.claims.views import ClaimRow
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.store import SessionInfo, Store, StoreError
from spark_jms.store.admin import counts
from spark_jms.store.reports import StoreInfo
from spark_jms.store.shown_uri import shown_uri

if TYPE_CHECKING:  # its packages are of another extra
    from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

T = TypeVar("T")
DESTINATIONS, SESSIONS, SERVERS, QUOTAS = "destinations", "sessions", "servers", "quotas"
STORE_COUNTS, HIGH_MARKS, SERVICES, TRANSACTIONS = "store counts", "high marks", "services", "transactions"
PARTS = (DESTINATIONS, SESSIONS, SERVERS, QUOTAS, STORE_COUNTS, HIGH_MARKS, SERVICES, TRANSACTIONS)


@dataclass(frozen=True)
class ClusterSample:
    """Of a replicated store; `error` says why the daemons could not be asked."""

    daemons: tuple[DaemonInfo, ...] = ()
    regions: tuple[RegionInfo, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class DomainSample:
    """`unread`: destination -> why it cannot be read; `unread_quotas` likewise. `problems`: a part of the domain, of PARTS, that
    could not be read at all -> why."""

    time_ms: int
    root: str
    store: str
    destinations: tuple[DestinationStatistics, ...] = ()
    claims: tuple[ClaimRow, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()  # the live sessions of the store
    cluster: ClusterSample | None = None  # None: the store is not a replicated one
    servers: tuple[ServerRow, ...] = ()
    quotas: tuple[QuotaRow, ...] = ()
    counts: StoreInfo | None = None  # None: its kind does not count
    high_marks: tuple[HighMarkRow, ...] = ()
    services: tuple[ServiceReport, ...] = ()
    transactions: tuple[TransactionRow, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    unread_quotas: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def take(domain: Domain, store: Store) -> DomainSample:
    """`store` should limit the time of each call (`open_stores(domain, LOOK_S)`), so that one that hangs delays this once."""
    problems: dict[str, str] = {}
    unread: dict[str, str] = {}
    unread_quotas: dict[str, str] = {}

    names = _looked(DESTINATIONS, problems, domain.destinations) or []
    found: list[DestinationStatistics] = []
    claims: list[ClaimRow] = []
    for name in names:
        look = _looked(name, unread, partial(_destination, domain, store, name))
        if look is not None:
            found.append(look[0])
            claims += look[1]
    sessions = _looked(SESSIONS, problems, store.sessions) or {}
    return DomainSample(
        now_ms(),
        domain.root,
        shown_uri(domain.store),
        tuple(found),
        tuple(claims),
        tuple(sorted(sessions.values(), key=lambda session: session.label)),
        _cluster(domain.store),
        tuple(_looked(SERVERS, problems, partial(list_servers, domain, store)) or ()),
        tuple(_looked(QUOTAS, problems, partial(_quotas, domain, unread_quotas)) or ()),
        _looked(STORE_COUNTS, problems, partial(counts, domain.store_uri)),
        tuple(_looked(HIGH_MARKS, problems, partial(high_marks, domain)) or ()),
        tuple(_looked(SERVICES, problems, partial(service_reports, domain)) or ()),
        tuple(_looked(TRANSACTIONS, problems, partial(transactions, domain, store)) or ()),
        unread,
        unread_quotas,
        problems,
    )


def _destination(domain: Domain, store: Store, name: str) -> tuple[DestinationStatistics, list[ClaimRow]] | None:
    try:
        return collect(domain, store, name), views.claims(domain, store, name)
    except Exception:
        if name in domain.destinations():
            raise
        return None  # it was dropped meanwhile


def _quotas(domain: Domain, unread: dict[str, str]) -> list[QuotaRow]:
    names = quota_names(domain)
    try:
        return quotas(domain, names) if names else []
    except Exception:  # noqa: BLE001 - which one it is, shows when each is read alone
        found = (_looked(name, unread, partial(quotas, domain, [name])) for name in names)
        return [row for rows in found for row in rows or ()]


def _looked(what: str, problems: dict[str, str], look: Callable[[], T]) -> T | None:
    """None when it failed."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - the sample names it
        problems[what] = f"{type(error).__name__}: {error}"
        return None


def _cluster(store: str) -> ClusterSample | None:
    if not store.startswith("replicated:"):
        return None
    from spark_jms.store.records.settings import parse_replicated
    from spark_jms.store.regions.admin.api import Admin

    try:
        settings = parse_replicated(store)
        with Admin(settings.directory, settings.localindex) as admin:
            return ClusterSample(tuple(admin.daemons()), tuple(admin.regions()))
    except (StoreError, OSError) as error:
        return ClusterSample(error=str(error))
