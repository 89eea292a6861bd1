"""The questions in SQL of docs/MONITORING.md, as they stand there (M3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_jms import connect
from tests.harness.project import PROJECT

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

MONITORING = PROJECT / "docs" / "MONITORING.md"


def statements(root: str) -> list[str]:
    """Of the chapter, for this root."""
    chapter = MONITORING.read_text(encoding="utf-8").split("## Questions in SQL\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sql\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    return [
        part.replace("'messages'", f"'{root}'").replace("'orders'", "'jobs'")
        for block in blocks
        for part in block.split(";")
        if part.strip()
    ]


def test_documented_questions_are_answered(bench: Bench) -> None:
    """M3: depth by selector, position of one message, oldest in flight per unit of order; claims have gaps."""
    with connect(bench.root, housekeeping=False) as context:
        producer = context.producer("jobs")
        for n in range(12):
            unit, amount = None if n == 2 else f"unit-{n % 2}", 20.0 * n
            producer.send(text=str(n), group_id=unit, correlation_id=f"order-{n}", properties={"amount": amount})
        shown = {m.text: m for m in context.browser("jobs")}
        member = {n: shown[str(n)].member for n in range(12)}
        with context.consumer("jobs", selector="amount <> 40", prefetch=4) as consumer:
            assert consumer.receive(5) is not None
            *views, depth, position, oldest = statements(bench.root)
            for view in views:
                bench.spark.sql(view)
            depths = {row.member: row.depth for row in bench.spark.sql(depth).collect()}
            assert depths == {m: sum(member[n] == m for n in range(6, 12)) for m in {member[n] for n in range(6, 12)}}
            held = {row.text: row.consumer for row in bench.spark.sql("SELECT text, consumer FROM in_flight").collect()}
            assert {"0", "1", "3"} < set(held)
            assert "2" not in held  # it lies between two messages of the claim
            (row,) = bench.spark.sql(position).collect()
            assert (row.member, row.sequence) == (member[7], shown["7"].sequence)
            assert row.ahead == sum(member[n] == member[7] for n in range(7))
            assert (row.consumer is not None) == ("7" in held)
            rows = bench.spark.sql(oldest).collect()
            assert {row.unit for row in rows} == {"unit-0", "unit-1"}
            assert all(row.sequence in {shown[text].sequence for text in held} for row in rows)
