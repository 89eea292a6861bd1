"""The pace of sinks: what a query's commits and batch writes owe above the thresholds, and how long they wait (T5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jms import connect
from spark_jms.admin.destinations import drop_destination
from spark_jms.client import Context
from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits.usage import FLOW
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqWriter, SinkFlow, StagedMessage
from spark_jms.testing.inside import records_of
from tests.harness.domains.flow_thresholds import FAST, GENTLE, consume, send, watched_domain


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with watched_domain(monkeypatch) as made:
        yield made


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connect(root, housekeeping=False, connection_factory=FAST) as made:
        yield made


@dataclass
class Sink:
    """The commits of a query, each by a new process, with a clock that its waits advance."""

    root: str
    factory: ConnectionFactory = GENTLE
    now_ms: int = 1_000_000
    slept: list[float] = field(default_factory=list)

    def commit(
        self, batch: int | None, messages: int, destination: str = "orders", query: str = "q", longest_s: float = 3600.0
    ) -> float:
        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now_ms += round(seconds * 1000)

        domain = Domain(self.root)
        log = domain.log(destination)
        log.refresh()
        return SinkFlow(domain, log, self.factory, lambda: self.now_ms, sleep).wait(query, batch, messages, longest_s)

    def stored(self, query: str = "q") -> dict[str, Any] | None:
        domain = Domain(self.root)
        data = domain.storage.get(f"{FLOW}/{domain.log('orders').refresh().table_id}/{query}")
        return None if data is None else json.loads(data)


def test_sink_waits_for_what_its_batches_owe(context: Context, root: str) -> None:
    """T5: the first batch too, and the whole of it. The pace stands under the query's id, so the next process continues with it; the
    rate falls by steps."""
    send(context, "orders", 11)
    sink = Sink(root)
    assert sink.commit(0, 500) == pytest.approx(4.99, abs=0.1)
    assert sink.commit(1, 50) == pytest.approx(0.5, abs=0.1)
    assert sink.commit(1, 50) < 0.1, "repeated by Spark, it owes once"
    # 100 a second for 4.5 s, then 31.6 for 10 s, then 10
    assert sink.commit(2, 5000) == pytest.approx(14.5 + (5000 - 450 - 316) / 10, abs=2)
    stored = sink.stored()
    assert stored is not None
    assert stored["pace"]["limit"] == 10
    assert stored["batch"] == 2
    assert sink.commit(0, 100, query="another") == pytest.approx(0.99, abs=0.1)


def test_batch_write_is_paced(context: Context, root: str) -> None:
    """T5: `df.write` pays for itself; inside foreachBatch it keeps the pace of its query, with each write."""
    send(context, "orders", 11)
    sink = Sink(root)
    assert sink.commit(None, 500, query="") == pytest.approx(4.99, abs=0.1)
    assert not list(Domain(root).storage.list(FLOW))
    assert sink.commit(None, 500) == pytest.approx(4.99, abs=0.1)
    assert sink.commit(None, 500) == pytest.approx(5, abs=0.1)
    sink.now_ms += 60_000
    assert sink.commit(None, 100) == pytest.approx(9.9, abs=0.1)
    stored = sink.stored()
    assert stored is not None
    assert stored["batch"] == -1


@pytest.mark.parametrize("transaction", [{}, {"txnAppId": "a", "txnVersion": "1"}])
def test_batch_write_waits_at_its_commit(root: str, monkeypatch: pytest.MonkeyPatch, transaction: Any) -> None:
    """T5: as Spark drives it; what the log has already waits for nothing."""
    waits = []
    monkeypatch.setattr(
        SinkFlow, "wait", lambda self, query, batch, count, longest_s: waits.append((query, batch, count, self.server))
    )

    def write() -> None:
        log = Domain(root).log("orders")
        writer = MessageWriter(log.storage, log.refresh().destination, 0)
        writer.write(pa.RecordBatch.from_pydict({"text": ["x"] * 3}))
        given = parse_options({"root": root, "destination": "orders", **transaction})
        message = StagedMessage(0, "", log.snapshot.route_id, writer.close(), ANY_MEMBER)
        JmsqWriter(given, StructType([StructField("text", StringType())]), False).commit([message])

    write()
    write()
    assert waits == [("", None, 3, None)] * (1 if transaction else 2)


def test_sink_does_not_wait_for_a_clock_that_was_set_back(context: Context, root: str) -> None:
    """T5: what is owed is paid for by the time that passes from now on."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 500, longest_s=0.0)
    sink.now_ms -= 3_600_000
    assert sink.commit(1, 1) == pytest.approx(5, abs=0.1)


def test_sink_is_free_again_below_the_threshold(context: Context, root: str) -> None:
    """T5: then nothing is stored."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 500, longest_s=0.0)
    consume(context, "orders", 9)
    sink.now_ms += 5_000
    assert sink.commit(1, 10) == pytest.approx(0.09, abs=0.1)
    assert sink.stored() is not None
    sink.now_ms += 60_000
    assert sink.commit(2, 10_000) == 0
    assert sink.stored() is None


def test_sink_waits_no_longer_than_its_files_are_safe(context: Context, root: str) -> None:
    """T5, C13: clean-up deletes staged files that are too old."""
    send(context, "orders", 11)
    sink = Sink(root)
    assert sink.commit(0, 5000, longest_s=3.0) == pytest.approx(3)
    assert sink.commit(1, 1, longest_s=2.0) == pytest.approx(2), "the rest is owed"
    stored = sink.stored()
    assert stored is not None
    assert stored["pace"]["debt"] == pytest.approx(4501)


def test_sink_stays_armed_between_the_thresholds(context: Context, root: str) -> None:
    """T5: by what its last batch knew, although a new process commits."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 1)
    consume(context, "orders", 4)
    sink.now_ms += 20_000
    sink.commit(1, 1)
    stored = sink.stored()
    assert stored is not None
    assert stored["armed"] == {"orders": [True, False]}
    assert stored["pace"]["limit"] == 10


def test_sink_without_flow_control_is_free(context: Context, root: str) -> None:
    """T5: its connection factory turns it off."""
    send(context, "orders", 11)
    sink = Sink(root, attrs.evolve(GENTLE, flow_control_enabled=False))
    assert sink.commit(0, 5000) == 0
    assert sink.commit(1, 5000) == 0
    assert sink.stored() is None


def test_sink_without_thresholds_reads_and_writes_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: default off costs nothing."""
    domain = Domain(root)
    log = domain.log("free")
    log.refresh()

    def fail(*_: object) -> None:
        raise AssertionError("a file was touched")

    for name in ("get", "put", "create", "exists", "list", "delete"):
        monkeypatch.setattr(type(domain.storage), name, fail)
    assert SinkFlow(domain, log, ConnectionFactory()).wait("q", 1, 1000, 60.0) == 0


def test_damaged_pace_counts_as_missing(context: Context, root: str, caplog: pytest.LogCaptureFixture) -> None:
    """T5: it is only a pace."""
    send(context, "orders", 11)
    sink, domain = Sink(root), Domain(root)
    domain.storage.put(f"{FLOW}/{domain.log('orders').refresh().table_id}/q", b"{")
    assert sink.commit(5, 10) == pytest.approx(0.09, abs=0.01)
    assert "is damaged and counts as missing" in caplog.text
    stored = sink.stored()
    assert stored is not None
    assert stored["batch"] == 5


def test_drop_removes_the_pace_of_queries(context: Context, root: str) -> None:
    """T5, C3."""
    send(context, "orders", 11)
    sink, domain = Sink(root), Domain(root)
    sink.commit(0, 500)
    table_id = domain.log("orders").refresh().table_id
    drop_destination(domain, records_of(context), "orders", force=True)
    assert not list(domain.storage.list(f"{FLOW}/{table_id}"))
