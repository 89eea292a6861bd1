"""A domain at one moment, for the console and for Prometheus, and who may read a page that shows it. Only reads.

What cannot be read is named, and hides nothing else: a damaged destination, a server or daemons that do not answer. This machine
reads a page without a token, any other only with one.

Features: M5, M8 (docs/FEATURES.md)
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_jms.admin.quota import QuotaRow, quota_names, quotas
from spark_jms.admin.servers import ServerRow, TransactionRow, list_servers, transactions
from spark_jms.admin.services import ServiceReport, service_reports
from spark_jms.admin.statistics import DestinationStatistics, HighMarkRow, collect, high_marks
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.views import ClaimRow
from spark_jms.errors import OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import SessionInfo, Store, StoreError
from spark_jms.store.contract import StoreInfo
from spark_jms.store.errors import shown_uri
from spark_jms.store.kinds.administration import counts

if TYPE_CHECKING:
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
    from spark_jms.store.regions.admin.api import Admin
    from spark_jms.store.replicated.store import parse_replicated

    try:
        settings = parse_replicated(store)
        with Admin(settings.directory, settings.localindex) as admin:
            return ClusterSample(tuple(admin.daemons()), tuple(admin.regions()))
    except (StoreError, OSError) as error:
        return ClusterSample(error=str(error))


# -- who may read a page -----------------------------------------------------------------------------------------------


def read_token(file: Path) -> str:
    """What the file has, without the blanks around it. Raises OptionError for what no header of a request can carry."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"the token in {file} has byte 0x{error.object[error.start]:02x} at {error.start}: write letters and digits of ASCII, "
            "which every browser and scraper sends as they are"
        ) from None
    if not token.isprintable() or " " in token:
        raise OptionError(f"the token in {file} has blanks, lines or control characters: write one word")
    if not token:
        raise OptionError(f"{file} is empty: write a token into it")
    return token


def check_exposure(host: str, token: str | None) -> None:
    """Raises OptionError for an address off loopback without a token."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not token:
        raise OptionError(f"{host} can be reached from other machines: give --token-file, or serve 127.0.0.1")


def is_allowed(token: str | None, authorization: str, parameter: str = "") -> bool:
    """Whether a request with this Authorization header, or this token as a parameter of its address, may read the page."""
    given = parameter or authorization.removeprefix("Bearer ")
    return token is None or hmac.compare_digest(given.encode(), token.encode())
