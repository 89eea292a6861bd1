"""A destination's table as Spark's Delta reads it, without spark-jms (C3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

FILES = 3


EXPECTED = {  # condition -> rows, files that are read
    "JMSTimestamp < 1000": (0, 0),
    "JMSPriority = 9": (1, 1),
    "JMSExpiration > 0": (0, 0),
    "JMSDeliveryTime < 1000": (0, 0),
    "ordinal > 0": (0, 0),
    "JMSXGroupID = 'g1'": (1, FILES),
    "JMSCorrelationID IS NULL": (FILES, FILES),
    "amount = 1": (1, FILES),
    "amount IS NULL": (0, FILES),
}


def test_delta_skips_files_by_the_columns_that_the_table_names(bench: Bench) -> None:
    """C3, C7: by others it reads each file, and finds all rows."""
    wanted = Destination("jobs", "queue", promoted_properties=("amount:long",))
    apply_destinations(bench.domain, [wanted], lambda destination, member: False)
    for number in range(FILES):
        columns = (f"'{number}' text", f"'g{number}' JMSXGroupID", f"{9 - number} JMSPriority")
        sent = bench.spark.range(0, 1, 1, 1).selectExpr(*columns, f"named_struct('amount', {number}L) properties")
        bench.send(sent, "jobs")
    frame = bench.spark.read.format("delta").load(bench.domain.log("jobs").storage.uri)
    found = {condition: frame.where(condition) for condition in EXPECTED}
    assert {text: (rows.count(), len(rows.inputFiles())) for text, rows in found.items()} == EXPECTED
