"""T8: Spark reads the files of each kind of compression."""

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
