"""Units of work from and to Spark: sent by a stream's tasks in any order, received whole in one batch (T12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

PROPERTIES = """named_struct('JMS_BEA_UnitOfWork', concat('u', id % 40), 'JMS_BEA_UnitOfWorkSequenceNumber',
 cast(id div 40 as int) + 1, 'JMS_BEA_IsUnitOfWorkEnd', id div 40 = 4) AS properties"""


def test_query_gets_each_unit_in_one_batch(bench: Bench) -> None:
    """T12: 40 units of 5 messages, each spread over the tasks of a send; limits of 7 messages a batch; one unit incomplete."""
    units = Destination("units", "distributed-queue", 2, unit_of_work_handling_policy="SingleMessageDelivery")
    apply_destinations(bench.domain, [units], lambda name, member: False)
    rows = bench.spark.range(0, 200, 1, 4).where("id != 50")  # the second message of unit u10
    bench.send(rows.selectExpr("cast(id as string) AS text", PROPERTIES), "units")
    seen: list[list[tuple[str, int, int]]] = []

    def keep(frame, number: int) -> None:  # type: ignore[no-untyped-def]
        chosen = frame.selectExpr("member", "sequence", "text", "spark_partition_id() AS task")
        seen.append([(row.task, row.member, int(row.text)) for row in chosen.collect()])

    query = (
        bench.stream("units", maxMessagesPerTrigger=7)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(bench.path / "units"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    got = [number for batch in seen for _, _, number in batch]
    assert sorted(got) == [n for n in range(200) if n % 40 != 10]
    for batch in seen:
        numbers = [number for _, _, number in batch]
        for unit in {n % 40 for n in numbers}:
            own = [n // 40 for n in numbers if n % 40 == unit]
            at = [place for place, n in enumerate(numbers) if n % 40 == unit]
            assert own == [0, 1, 2, 3, 4]
            assert at == list(range(at[0], at[0] + 5))
        assert len(numbers) <= 2 * 5
