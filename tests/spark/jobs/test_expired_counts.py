"""Expired messages counted by a streaming aggregation (T6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jms import connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.core.destinations.destination import Destination
from spark_jms.jobs import expiration
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.inside import records_of

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_aggregation_equals_a_recount_after_a_restart(bench: Bench) -> None:
    """T6: discarded and redirected messages, of each subscription, by minutes; the query continues from its checkpoint, and a
    batch of which it does not know that it was written changes nothing."""
    output, checkpoint = bench.path / "counts", bench.path / "checkpoint"

    def expire(count: int, policy: str) -> None:
        topic = Destination(
            "news", "topic", message_logging_enabled=True, expiration_policy=policy, error_destination="jobs"
        )
        apply_destinations(bench.domain, [topic], lambda name, member: False)
        with connect(bench.root, housekeeping=False) as context:
            for subscription in ("a", "b"):
                context.consumer("news", subscription=subscription).close()
            over = pa.repeat(pa.scalar(now_ms() - 1, pa.int64()), count)
            context.producer("news").send_table(pa.table({"text": ["x"] * count, "JMSExpiration": over}))
            rounds = Rounds(bench.domain, records_of(context), clean_up=True)
            assert [done.expired_messages for done in rounds.run(["news"])] == [2 * count]
            rounds.close()

    def counted() -> dict[str, int]:
        arguments = ["--root", bench.root, "--destination", "news", "--output", str(output)]
        expiration.main([*arguments, "--checkpoint", str(checkpoint), "--once"])
        counts, table = bench.spark.read.format("delta").load(str(output)), bench.domain.life_cycle("news")
        assert table is not None
        recount = expiration.expired_by_minute(bench.spark.read.format("delta").load(table.storage.uri))
        rows = sorted(map(tuple, counts.collect()))
        assert rows == sorted(map(tuple, recount.collect()))
        return {name: sum(row[2] for row in rows if row[0] == name) for name in ("a", "b")}

    expire(20, "Discard")
    assert counted() == {"a": 20, "b": 20}
    expire(5, "Redirect")
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()  # as if it was killed between the batch and its commit
    assert counted() == {"a": 25, "b": 25}
    with connect(bench.root, housekeeping=False) as context:
        assert collect(bench.domain, records_of(context), "news").expired == 50
