"""T8: Spark reads the files of each kind of compression, and compressed bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jms.module import apply
from spark_jms.settings.destination import COMPRESSIONS

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_spark_reads_each_kind_of_compressed_bodies(bench: Bench) -> None:
    """T8, C3: as a Delta table and as messages, files of all kinds side by side."""
    for number, options in enumerate(COMPRESSIONS):
        packed = {"kind": "queue", "storeMessageCompressionEnabled": True, "messageCompressionOptions": options}
        apply(bench.root, {"destinations": {"packed": packed}})
        bench.send(bench.numbers(number * 10, number * 10 + 9), "packed")
    expected = list(range(10 * len(COMPRESSIONS)))
    table = bench.spark.read.format("delta").load(bench.domain.log("packed").storage.uri)
    for frame in (table, bench.browse("packed")):
        assert sorted(int(row.text) for row in frame.select("text").collect()) == expected


def test_spark_sends_and_receives_compressed_bodies(bench: Bench) -> None:
    """T8: the sink compresses as its connection factory says, and a stream gets bodies where its columns ask for them; Delta
    readers see them compressed."""
    factories = {"connectionFactories": {"packing": {"defaultCompressionThreshold": 50}}}
    apply(bench.root, {"destinations": {"long": {"kind": "queue"}}, **factories})
    frame = bench.numbers(0, 9).selectExpr("concat(text, repeat('-', 20 * text)) text")
    bench.send(frame, "long", connectionFactory="packing")
    expected = sorted(row.text for row in frame.collect())
    assert sorted(row.text for row in bench.browse("long", columns="text").collect()) == expected
    table = bench.spark.read.format("delta").load(bench.domain.log("long").storage.uri).where("JMSPriority = 4")
    assert table.where("properties['JMS_JMSQ_Compressed'] = 'text' and text is null").count() == 7
    bench.drain("long", "packed", columns="text,properties").awaitTermination()
    received = bench.spark.read.format("delta").load(str(bench.path / "out-packed")).collect()
    assert sorted(row.text for row in received) == expected
    assert not any(row.properties for row in received)
