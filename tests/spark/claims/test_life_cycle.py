"""The life-cycle log in SQL (T6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from spark_jms import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.testing import wait_until
from tests.harness.project import PROJECT

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

MONITORING = PROJECT / "docs" / "MONITORING.md"


def statements(root: str) -> list[str]:
    """Of the chapter, for this root."""
    chapter = MONITORING.read_text(encoding="utf-8").split("## The life-cycle log\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sql\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    return [part.replace("'messages'", f"'{root}'") for block in blocks for part in block.split(";") if part.strip()]


def written(table: DeltaLog) -> list[str]:
    """The keys of events of record sets that are in the table."""
    paths = [f"{table.storage.uri}/{path}" for path in table.refresh().files]
    return [key for path in paths for key in pq.read_table(path)["key"].to_pylist() if key.startswith("life/")]


def test_life_cycle_is_read_in_sql(bench: Bench) -> None:
    """T6: what a query claims and acknowledges, by the view, by the documented statements and by a plain Delta reader."""
    logged = Destination("orders", "distributed-queue", 4, message_logging_enabled=True)
    apply_destinations(bench.domain, [logged], lambda name, member: False)
    bench.send(bench.numbers(1, 20), "orders")
    bench.drain("orders", "ck", maxMessagesPerTrigger=8)
    sums = bench.browse("orders", view="events").groupBy("event").sum("messages").collect()
    assert dict(sums) == {"sent": 20, "claimed": 20, "acknowledged": 20}
    view, one, slow = statements(bench.root)
    bench.spark.sql(view)
    member, sequence = bench.browse("orders", view="all").selectExpr("member", "sequence").first() or (0, 1)
    told = bench.spark.sql(one.replace("member = 0", f"member = {member}").replace("42", str(sequence))).collect()
    assert [row.event for row in told] == ["sent", "claimed", "acknowledged"]
    shown = bench.browse("orders", view="events").where("event <> 'sent'").collect()
    claims = [row for row in shown if row.event == "claimed"]
    assert {row.claim for row in bench.spark.sql(slow).collect()} == {row.claim for row in claims}
    table = bench.domain.life_cycle("orders")
    assert table is not None
    with connect(bench.root) as context, context.consumer("orders") as consumer:
        assert (
            consumer.receive(0) is None
        )  # it takes up the records, whose last events Spark gave the query no time to write
        wait_until(lambda: len(written(table)) == len(shown), 60)
    rows = bench.spark.read.format("delta").load(table.storage.uri).where("event <> 'sent'").collect()
    assert sum(row.messages for row in rows) == 40
    assert len({row.key for row in rows}) == len(rows)
