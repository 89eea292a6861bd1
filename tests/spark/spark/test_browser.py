"""Views and SQL over the backlog (C1, C3, C13, C16, T3)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.log.upkeep.usage_history import USAGE_HISTORY
from spark_jms.setup.session import delta_fits

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_views_show_acknowledgements_claims_subscriptions_and_usage(bench: Bench) -> None:
    """C16, T3: acknowledgements, claims, subscriptions and the usage history can be read as tables."""
    bench.send(bench.numbers(1, 20), "orders")
    bench.drain("orders", "ck", maxMessagesPerTrigger=8)
    acks = bench.browse("orders", view="acknowledgements").collect()
    assert sum(r.messages for r in acks) == 20
    assert {r.subscription for r in acks} == {"-"}
    assert bench.browse("orders", view="claims").count() == 0
    positions = bench.browse("orders", view="subscriptions").collect()
    # Each writing task starts its round robin at a random member, so a member has 4 to 6 of the 20 messages.
    assert [r.member for r in positions] == [0, 1, 2, 3]
    assert [(r.floor, r.backlog) for r in positions] == [(r.last_sequence, 0) for r in positions]
    assert sum(r.last_sequence for r in positions) == 20
    assert bench.browse("orders", view="all").count() <= 20  # finished messages stay until the next purge
    assert bench.browse("orders").count() == 0
    with opened_store(bench.domain) as store:
        with closing(Housekeeper(bench.domain, store, "orders")) as housekeeper:
            housekeeper.run()  # it writes the acknowledgements that the query may have left
        UsageHistory(bench.domain, store).record(["orders"])
    bench.browse("orders", view="usage").createOrReplaceTempView("usage")
    passed = bench.spark.sql("SELECT sum(sent), sum(finished) > 0, max_by(messages_used, begins) FROM usage").first()
    assert passed is not None
    assert tuple(passed) == (20, True, 0)
    if delta_fits():
        table = bench.spark.read.format("delta").load(bench.domain.storage.child(USAGE_HISTORY).uri)
        assert table.selectExpr("sum(sent + gone)").collect()[0][0] == 20, "housekeeping may have purged them before"


def test_temporary_view_reads_and_sends_by_sql(bench: Bench) -> None:
    """C1: a temporary view shows the current backlog, and INSERT sends."""
    bench.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW backlog USING jmsq OPTIONS (root '{bench.root}', destination 'jobs')"
    )
    bench.spark.sql("INSERT INTO backlog (text) VALUES ('a'), ('b'), ('c')")
    rows = bench.spark.sql("SELECT text, count(*) n FROM backlog GROUP BY text ORDER BY text").collect()
    assert [(r.text, r.n) for r in rows] == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.delta
def test_every_delta_reader_reads_a_destination(bench: Bench) -> None:
    """C3: delta-spark, delta-rs, DuckDB and Polars read the destination; sequence = first_sequence + ordinal."""
    import duckdb
    import polars
    from deltalake import DeltaTable

    for i in range(3):
        bench.send(bench.numbers(i * 10, i * 10 + 9, partitions=1), "jobs")
    path = bench.domain.log("jobs").storage.uri
    expected = {(i + 1, str(i)) for i in range(30)}
    spark_rows = bench.spark.read.format("delta").load(path).selectExpr("first_sequence + ordinal s", "text").collect()
    assert {(r.s, r.text) for r in spark_rows} == expected
    table = DeltaTable(path).to_pyarrow_table()
    assert {(r["first_sequence"] + r["ordinal"], r["text"]) for r in table.to_pylist()} == expected
    assert set(duckdb.from_arrow(table).select("first_sequence + ordinal, text").fetchall()) == expected
    # Polars' native scan takes partition values from paths, not from the log.
    frame = polars.read_delta(path, use_pyarrow=True)
    assert set(frame.select((polars.col("first_sequence") + polars.col("ordinal")), "text").iter_rows()) == expected


def test_browsing_an_unknown_subscription_raises_an_error_that_names_it(bench: Bench) -> None:
    """C10: browsing a subscription that does not exist is an InvalidDestinationError."""
    with pytest.raises(Exception, match="(?s)InvalidDestinationError: topic prices has no subscription 'x'"):
        bench.browse("prices", subscription="x").count()
