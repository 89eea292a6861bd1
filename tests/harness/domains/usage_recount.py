"""The usage history beside a recount of the tables, both by DuckDB, which knows nothing of spark-jms (T3, M12)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb

from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.store import Store

# As docs/CHANGES.md names them; any other is a consumer.
KINDS = {
    "message expiration": "expired",
    "subscription limit": "dropped",
    "redelivery limit": "dropped",
    "poison isolation": "dropped",
    "unit of work": "dropped",
    "jmsq move": "moved",
    "jmsq redrive": "moved",
    "jmsq forward": "moved",
    "set aside": "aside",
    "jmsq purge": "purged",
    "message skip": "skipped",
    "subscription end": "ended",
}
COUNTED = ("sent", "finished", *dict.fromkeys(KINDS.values()))

Account = Counter[tuple[str, int, int, str]]
"""(destination, member, minute in ms since 1970, kind) -> messages."""


def check_usage(domain: Domain, store: Store) -> set[str]:
    """The history, recorded from the beginning, has each member's minutes as the tables have them. Returns the kinds that were met."""
    names = domain.destinations()
    table = UsageHistoryTable(domain)
    assert not table.log.storage.exists("_delta_log"), "it was recorded before"
    assert UsageHistory(domain, store).record(names)[1] == {}
    recount = Account()
    for name in names:
        recount += _recount(name, domain.log(name), domain.acknowledgements(name))
    recorded = _recorded(table.log)
    assert recorded == recount, f"too much: {recorded - recount}, too little: {recount - recorded}"
    return {kind for *_, kind in recount}


def _recount(name: str, messages: DeltaLog, acknowledgements: DeltaLog) -> Account:
    found = Account()
    kinds = " ".join(f"WHEN '{consumer}' THEN '{kind}'" for consumer, kind in KINDS.items())
    for log, minute, kind, count in (
        (messages, "JMSTimestamp // 60000", "'sent'", "count(*)"),
        (acknowledgements, "acknowledged_ms // 60000", f"CASE consumer {kinds} ELSE 'finished' END", "sum(messages)"),
    ):
        for path in log.refresh().files:
            member = int(Path(path).name.removeprefix("m").partition("-")[0])
            rows = duckdb.sql(
                f"SELECT {minute}, {kind}, {count} FROM read_parquet('{log.storage.uri}/{path}') GROUP BY 1, 2"
            )
            for number, what, messages_ in rows.fetchall():
                found[name, member, int(number) * 60_000, str(what)] += int(messages_)
    return found


def _recorded(log: DeltaLog) -> Account:
    files = [f"{log.storage.uri}/{path}" for path in log.refresh().files]
    found = Account()
    for what in COUNTED if files else ():
        rows = duckdb.sql(
            f"SELECT destination, of_member, minute_ms, {what} FROM read_parquet({files}) WHERE {what} > 0 AND of_member >= 0"
        )
        for name, member, minute_ms, messages in rows.fetchall():
            found[str(name), int(member), int(minute_ms), what] += int(messages)
    return found
