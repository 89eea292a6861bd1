"""Spark on a domain whose store is a database (S1, C9): the messaging code does not know which store it uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import create_domain
from spark_jms.store import ForeignOwnerError, open_store
from tests.spark.conftest import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["sqlite", "postgresql"])
def jdbc_bench(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    uri = f"jdbc:sqlite:///{tmp_path}/store.db"
    if request.param == "postgresql":
        uri = request.getfixturevalue("postgresql").uri()
    domain = create_domain(str(tmp_path / "domain"), uri)
    apply_destinations(
        domain, [Destination("orders", "distributed-queue", members=2)], lambda destination, member: False
    )
    yield Bench(spark, domain.root, tmp_path, domain)
    for query in spark.streams.active:
        query.stop()


def test_a_query_receives_exactly_once_and_resumes_from_its_checkpoint(jdbc_bench: Bench) -> None:
    """S1, C5: Spark sends, two runs of one query receive, and the store has everything acknowledged."""
    bench = jdbc_bench
    bench.send(bench.numbers(1, 100), "orders")
    bench.drain("orders", "ck", maxMessagesPerTrigger=30)
    bench.send(bench.numbers(101, 150), "orders")
    bench.drain("orders", "ck")
    rows = bench.spark.read.format("delta").load(str(bench.path / "out-ck")).select("text").collect()
    assert sorted(int(row.text) for row in rows) == list(range(1, 151))
    assert bench.browse("orders").count() == 0
    assert bench.domain.store_uri.endswith(f"engine={bench.domain.id}")
    with open_store(bench.domain.store_uri, create=False) as store:
        assert len(store.names()) >= 2
    with pytest.raises(ForeignOwnerError):
        open_store(bench.domain.store_uri.replace(bench.domain.id, "another-domain"))
