"""The streaming sink's transaction, driven by hand as Spark drives it: no session, no JVM (C5)."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jms import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import QueryIdError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, StagedMessage
from spark_jms.testing import memory_domain

SCHEMA = StructType([StructField("text", StringType())])


def staged(root: str, text: str) -> list[StagedFile]:
    import pyarrow as pa

    writer = MessageWriter(Domain(root).log("orders").storage, Destination("orders", "queue"), 0)
    writer.write(pa.RecordBatch.from_pydict({"text": [text]}))
    return writer.close()


def sink(root: str) -> JmsqStreamWriter:
    return JmsqStreamWriter(parse_options({"root": root, "destination": "orders"}), SCHEMA, False)


@pytest.mark.parametrize("query_ids", [("",), ("q", ""), ("q", "r")])
def test_a_batch_without_one_query_id_is_refused(query_ids: tuple[str, ...]) -> None:
    """C5: two queries that shared the id "" took each other's batch 7 for their own, and one of them was lost."""
    with memory_domain(orders="queue") as root:
        route = Domain(root).log("orders").refresh().route_id
        tasks = [
            StagedMessage(i, query_id, route, staged(root, str(i)), ANY_MEMBER) for i, query_id in enumerate(query_ids)
        ]
        with pytest.raises(QueryIdError, match="nothing was sent"):
            sink(root).commit(list(tasks), 7)
        assert Domain(root).log("orders").refresh().last_sequence(0) == 0


def test_queries_do_not_share_transactions() -> None:
    """C5: batch 7 of two queries counts twice, of one query once; an empty batch needs no id."""
    with memory_domain(orders="queue") as root:
        route = Domain(root).log("orders").refresh().route_id
        for query_id in ("q", "r", "q"):
            sink(root).commit([StagedMessage(0, query_id, route, staged(root, query_id), ANY_MEMBER)], 7)
        sink(root).commit([], 8)
        with connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
            first, second = consumer.receive(timeout=5), consumer.receive(timeout=5)
            assert first is not None
            assert second is not None
            assert (first.text, second.text) == ("q", "r")
            assert consumer.receive(timeout=0) is None
