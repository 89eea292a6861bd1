"""The page as HTML, from a history. Pure. Everything that a domain names is escaped.

Features: M8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePosixPath

from spark_jms.admin.destinations import PauseRow
from spark_jms.admin.domain_sample import ClusterSample, DomainSample
from spark_jms.claims.upkeep.views import moment
from spark_jms.console.history import History, chart

STYLE = """
body{font:14px system-ui,sans-serif;margin:1.5rem;color:#1f2937;background:#fff}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:1.6rem}small{color:#6b7280}
table{border-collapse:collapse}th,td{padding:.15rem .7rem .15rem 0;text-align:left;border-bottom:1px solid #e5e7eb}
td.n,th.n{text-align:right}.bad{color:#b91c1c;font-weight:600}.charts{display:flex;flex-wrap:wrap;gap:1rem}
svg{width:420px;font-size:10px;fill:#6b7280}.axis{stroke:#d1d5db;fill:none}
"""


def page(history: History, refresh_s: float, error: str = "") -> str:
    """`refresh_s`: how often a browser asks again. `error`: why there is no newer sample."""
    sample = history.newest
    body = f'<p class="bad">{escape(error)}</p>' if error else ""
    body += "<p>No sample yet.</p>" if sample is None else _body(history, sample)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>spark-jms</title>'
        f'<meta http-equiv="refresh" content="{refresh_s:g}"><style>{STYLE}</style></head><body>{body}</body></html>'
    )


def _body(history: History, sample: DomainSample) -> str:
    head = (
        f'<h1>spark-jms</h1><p title="{escape(sample.root)}">{escape(PurePosixPath(sample.root).name)} <small>'
        f"store {escape(sample.store.partition('?')[0])} · {moment(sample.time_ms):%Y-%m-%d %H:%M:%SZ}</small></p>"
    )
    parts = [head, "<h2>Destinations</h2>", _unread(sample), _destinations(sample)]
    for one in sample.destinations:
        parts.append(f"<h2>{escape(one.destination)}</h2>")
        backlog, rates = history.backlog(one.destination), history.rates(one.destination)
        parts.append(f'<div class="charts">{chart([backlog], history.span_s)}{chart(rates, history.span_s)}</div>')
        parts += [f'<p class="bad">{escape(f"{failure.what}: {failure.error}")}</p>' for failure in one.failures]
        rows = [
            (m.member, m.last_sequence, m.backlog, m.claimed, m.consumers, m.stored_messages, m.files)
            for m in one.members
        ]
        parts.append(_table(("member", "last", "backlog", "claimed", "consumers", "stored", "files"), rows))
    parts += ["<h2>Subscriptions</h2>", _subscriptions(sample), "<h2>Claims</h2>", _claims(sample)]
    parts += ["<h2>Quotas</h2>", _quotas(sample), "<h2>Servers</h2>", _servers(sample)]
    parts += ["<h2>Services</h2>", _services(sample), "<h2>Open transactions</h2>", _transactions(sample)]
    parts += [
        "<h2>Sessions of the store</h2>",
        _table(("session", "label"), [(s.session_id, s.label) for s in sample.sessions]),
    ]
    if sample.cluster is not None:
        parts.append(_cluster(sample.cluster))
    return "".join(parts)


def _destinations(sample: DomainSample) -> str:
    names = (
        "name",
        "kind",
        "members",
        "sent",
        "backlog",
        "oldest",
        "claimed",
        "consumers",
        "stored",
        "files",
        "bytes",
        "expired",
        "flow",
        "paused",
        "health",
    )
    return _table(
        names,
        [
            (
                one.destination,
                one.kind,
                len(one.members),
                one.sent,
                one.backlog,
                f"{one.oldest:%H:%M:%S}" if one.oldest else "–",
                one.claimed,
                one.consumers,
                one.stored_messages,
                one.files,
                one.bytes,
                one.expired,
                _FLOW[one.exceeds_threshold],
                _paused(one.paused),
                one.health,
            )
            for one in sample.destinations
        ],
    )


def _unread(sample: DomainSample) -> str:
    """What could not be read, and why."""
    lines = {**sample.unread, **sample.problems, **{f"quota {name}": why for name, why in sample.unread_quotas.items()}}
    return "".join(f'<p class="bad">{escape(f"{what}: {why}")}</p>' for what, why in lines.items())


def _quotas(sample: DomainSample) -> str:
    rows = [
        (
            row.quota,
            ", ".join(row.destinations) or "–",
            row.policy,
            _of(row.messages_used, row.messages_maximum),
            _of(row.bytes_used, row.bytes_maximum),
            row.messages_reserved,
            row.waiting,
        )
        for row in sample.quotas
    ]
    return _table(("quota", "destinations", "policy", "messages", "bytes", "reserved", "waiting"), rows)


def _of(used: int, maximum: int) -> str:
    return f"{used:,}" if maximum < 0 else f"{used:,} of {maximum:,}"


def _services(sample: DomainSample) -> str:
    rows = [
        (
            report.process,
            one["service"],
            "no sign of life" if report.silent else one["state"],
            one["rounds"],
            one["error"] or "–",
        )
        for report in sample.services
        for one in report.services
    ]
    return _table(("process", "service", "state", "rounds", "last error"), rows)


def _transactions(sample: DomainSample) -> str:
    rows = [
        (
            one.transaction,
            one.state,
            f"{one.made:%H:%M:%S}" if one.made else "–",
            one.owner if one.owner_lives or not one.owner else f"{one.owner} (dead)",
            ", ".join(one.targets) or "–",
            "; ".join(one.waits) or "–",
        )
        for one in sample.transactions
    ]
    return _table(("transaction", "state", "made", "owner", "to", "waits for"), rows)


def _servers(sample: DomainSample) -> str:
    rows = [(row.server, row.store, ", ".join(row.members) or "–", row.state, row.reason) for row in sample.servers]
    return _table(("server", "store", "members", "state", "reason"), rows)


def _paused(rows: Sequence[PauseRow]) -> str:
    """`production, insertion of member 2`."""
    shown = [row.operation if row.member is None else f"{row.operation} of member {row.member}" for row in rows]
    return ", ".join(dict.fromkeys(shown)) or "–"


def _subscriptions(sample: DomainSample) -> str:
    rows = [
        (
            row.destination,
            row.subscription,
            row.member,
            row.floor,
            row.last_sequence,
            row.backlog,
            row.consumers_shown or "–",
        )
        for one in sample.destinations
        for row in one.subscriptions
    ]
    return _table(("destination", "subscription", "member", "floor", "last", "lag", "consumers"), rows)


def _claims(sample: DomainSample) -> str:
    rows = [
        (
            c.destination,
            c.member,
            c.claim,
            c.consumer,
            c.messages,
            "live" if c.live else "in doubt",
            f"{c.made:%H:%M:%S}",
        )
        for c in sample.claims
    ]
    return _table(("destination", "member", "claim", "consumer", "messages", "state", "made"), rows)


def _cluster(cluster: ClusterSample) -> str:
    if cluster.error:
        return f'<h2>Daemons</h2><p class="bad">{escape(cluster.error)}</p>'
    daemons = [
        (
            d.index,
            f"{d.address}:{d.port}",
            "up" if d.up else "down",
            d.memory_used_bytes,
            d.memory_limit_bytes,
            d.regions_total,
        )
        for d in cluster.daemons
    ]
    regions = [
        (r.name, r.status, r.size_bytes, r.used_bytes, _index(r.primary), _index(r.secondary), r.opener or "–")
        for r in cluster.regions
    ]
    return (
        "<h2>Daemons</h2>"
        + _table(("index", "address", "state", "used", "limit", "regions"), daemons)
        + "<h2>Regions</h2>"
        + _table(("name", "status", "bytes", "used", "primary", "secondary", "opener"), regions)
    )


def _index(daemon: int | None) -> str:
    return "–" if daemon is None else str(daemon)


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table><tr>{head}</tr>{lines}</table>" if lines else "<p><small>none</small></p>"


_FLOW = {None: "–", False: "free", True: "slowed"}
_BAD = {"failing", "slowed", "no sign of life", "in doubt", "down", "LOST", "SINGLE", "UNAVAILABLE"}


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    text = str(value)
    return f'<td class="bad">{escape(text)}</td>' if text in _BAD else f"<td>{escape(text)}</td>"
