"""Quotas for people: limits, usage, and who has reserved or waits for room. Only reads.

Features: C14, T1, T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_jms.claims.upkeep.usage_history import UsageHistoryRow, usage_history
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.limits.quota import MessageUsage, OpenRequest
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits.quota_ledger import QuotaLedger
from spark_jms.settings.quota import SERVER_QUOTA


@dataclass(frozen=True)
class QuotaRequestRow:
    """`state` is waiting or reserved; `by` names the process, or the query with its batch. Waiting ones are in their order.
    A reservation that is overdue is ended when others need the room."""

    state: str
    destination: str
    messages: int
    bytes: int
    by: str
    until: datetime


@dataclass(frozen=True)
class QuotaRow:
    """One quota, or what one member of a destination has of a quota that is not shared: it is named as `east@orders` or `member 1 of
    orders`, the only one as its destination. `server+NAME` is the quota of a server. A maximum of -1 is none. `destinations` are those
    that have the quota now; usage counts messages that are not finished. `unreadable`: destinations that count with what they had when
    they could be read last."""

    quota: str
    shared: bool
    policy: str
    destinations: tuple[str, ...]
    messages_maximum: int
    bytes_maximum: int
    messages_used: int
    bytes_used: int
    messages_reserved: int
    bytes_reserved: int
    waiting: int
    requests: tuple[QuotaRequestRow, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuotaEntryRow:
    """One entry of a quota's ledger: what happened, and what it had then."""

    quota: str
    number: int
    at: datetime
    what: str
    messages_used: int
    bytes_used: int
    messages_reserved: int
    bytes_reserved: int
    waiting: int


def quota_names(domain: Domain) -> list[str]:
    """The quotas of the module file, and those of servers that have a maximum."""
    servers = [server for server, quota in domain.quotas.server_quotas().items() if quota.has_maximum]
    return [*domain.quotas.names(), *(SERVER_QUOTA + server for server in servers)]


def quotas(domain: Domain, names: list[str]) -> list[QuotaRow]:
    """Raises DomainError for a quota that the domain does not have."""
    having = _destinations(domain)
    rows = []
    for name in names or quota_names(domain):
        limit, users = domain.quotas.limit(name), sorted(having.get(name, ()))
        if limit.shared or not users:
            rows.append(_row(domain, name, domain.quotas.ledger(name, limit, ""), users, users))
            continue
        for user in users:
            declared = domain.log(user).snapshot.destination
            for member in domain.quotas.members_apart(name, declared):
                part = user if member is None else declared.part_name(member)
                rows.append(_row(domain, name, domain.quotas.ledger(name, limit, user, member), [user], [part]))
    return rows


def newest_entries(domain: Domain, name: str) -> list[QuotaEntryRow]:
    """The newest entries of a quota's ledgers, the oldest first."""
    domain.quotas.get(name)
    rows = []
    for ledger in domain.quotas.ledgers(name):
        for entry in ledger.history():
            used, reserved, waiting = entry.state.used, entry.state.reserved, len(entry.state.waiting)
            at = moment(entry.at_ms)
            counts = (used.messages, used.bytes, reserved.messages, reserved.bytes, waiting)
            rows.append(QuotaEntryRow(ledger.name, entry.number, at, entry.what, *counts))
    return rows


def history(domain: Domain, name: str, since_ms: int = 0) -> list[UsageHistoryRow]:
    """The minutes later than `since_ms` in which something changed, of the destinations that have this quota now, or else of the
    destination of this name. Raises DomainError when there is neither."""
    having = _destinations(domain).get(name)
    if having is None and name in domain.destinations():
        having = {name}
    elif having is None and not name.startswith(SERVER_QUOTA):
        domain.quotas.get(name)  # raises, with the quotas that there are
    return usage_history(domain, having or (), since_ms)


def _destinations(domain: Domain) -> dict[str, set[str]]:
    """quota -> the destinations that have it, temporary ones too; without those that cannot be read, which `jmsq list` names."""
    found: dict[str, set[str]] = {}
    temporary = [entry.name for entry in domain.temporary.entries()] if domain.quotas.server_quotas() else []
    for name in (*domain.destinations(), *temporary):
        try:
            log = domain.temporary.log(name) if is_temporary(name) else domain.log(name)
            counted = log.refresh().destination.quotas
        except (JmsqError, OSError):
            continue
        for quota in counted:
            found.setdefault(quota, set()).add(name)
    return found


def _row(domain: Domain, name: str, ledger: QuotaLedger, users: list[str], shown: list[str]) -> QuotaRow:
    limit = domain.quotas.limit(name)
    look = domain.quotas.now(ledger, users)
    state = look.state
    waiting = state.waiting
    reserved = state.reservations
    return QuotaRow(
        name,
        limit.shared,
        limit.policy,
        tuple(shown),
        limit.messages,
        limit.bytes,
        state.used.messages,
        state.used.bytes,
        state.reserved.messages,
        state.reserved.bytes,
        len(waiting),
        tuple(_request(one) for one in (*reserved, *waiting)),
        tuple(sorted(look.unreadable)),
    )


def _request(one: OpenRequest) -> QuotaRequestRow:
    need: MessageUsage = one.request.need
    return QuotaRequestRow(
        "waiting" if one.waits else "reserved",
        one.request.destination,
        need.messages,
        need.bytes,
        one.request.by,
        moment(one.until_ms),
    )
