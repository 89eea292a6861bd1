"""A plan: which headers it reads, how far it goes, and missing files (C6, C7, C12, C13)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches import planner
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.messages import scan as claims_scan
from spark_jms.claims.messages.scan import Question, read_files, scan, units_of
from spark_jms.client import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.selector import Selector
from spark_jms.errors import DataLossError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import data_files
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge
from spark_jms.store import open_store
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import texts_now

HIGH = "JMSPriority > 6"


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(orders="queue", prices="topic") as root, connect(root, housekeeping=False) as opened:
        yield opened


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose headers were read."""
    seen: list[str] = []
    read_stored = data_files.read_stored

    def counting(storage: Any, file: Any, *rest: Any) -> Any:
        seen.append(file.path)
        return read_stored(storage, file, *rest)

    monkeypatch.setattr(claims_scan, "read_stored", counting)
    return seen


def subscriber(context: Context, selector: str | None = None, *, careful: bool = True) -> Subscriber:
    settings = ConsumerSettings(Selector.parse(selector), fail_on_data_loss=careful)
    return Subscriber(Domain(context.root), records_of(context), "orders", "-", f"q-{careful}-{selector}", settings)


def texts(context: Context, selector: str | None, count: int) -> list[str | None]:
    with context.consumer("orders", selector=selector, acknowledge="individual", prefetch=1) as consumer:
        return texts_now(consumer, count)


# -- pruning -------------------------------------------------------------------------------------------------------------
def test_files_without_matches_are_not_opened(context: Context, opened_files: list[str]) -> None:
    """C7: minimum, maximum and the number of NULLs prove that a file has no match."""
    producer = context.producer("orders")
    for n in range(6):
        producer.send(text=str(n), priority=n, group_id=f"g{n}")
    producer.send(text="no unit", priority=9)
    for selector, opened, matching in (
        ("JMSPriority > 7", 1, ["no unit"]),
        ("JMSPriority >= 4 AND JMSPriority < 6", 2, ["4", "5"]),
        ("JMSXGroupID = 'g3'", 1, ["3"]),
        ("JMSXGroupID IN ('g0')", 1, ["0"]),
        ("JMSPriority BETWEEN 1 AND 2", 2, ["1", "2"]),
        ("JMSPriority <> 9 AND JMSXGroupID = 'x'", 0, []),
        ("JMSPriority = 3 OR JMSXGroupID IS NULL", 7, ["3", "no unit"]),
    ):
        opened_files.clear()
        assert [m.text for m in context.browser("orders", selector=selector)] == matching
        assert len(opened_files) == opened, selector


def test_property_is_not_taken_for_a_column_of_its_name(context: Context) -> None:
    """C7: files have statistics of the column `ordinal` too; a property may have that name."""
    context.producer("orders").send_many({"text": str(n), "properties": {"ordinal": n}} for n in (70, 71))
    assert [m.text for m in context.browser("orders", selector="ordinal = 71")] == ["71"]


# -- one plan is bounded -------------------------------------------------------------------------------------------------
def test_long_backlog_takes_several_bounded_plans(
    context: Context, opened_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, C7: each plan reads a bounded number of headers; no message is missed or read twice."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", 10)
    producer = context.producer("orders")
    for n in range(20):
        producer.send_many({"text": f"{n}-{i}", "properties": {"n": n}} for i in range(4))
    one = subscriber(context, "n = 19")
    batch, plans = None, 0
    while batch is None:
        batch = one.next_batch(Batch("q"), Limits())
        plans += 1
        assert len(opened_files) <= 3 * plans
        assert one.has_more() == (batch is None)
    assert plans == 7
    assert batch.count == 4
    assert len(opened_files) == len(set(opened_files)) == 20
    one.close()


def test_delayed_messages_are_read_once(context: Context, opened_files: list[str]) -> None:
    """C6, C12: a plan beside any number of them reads the new messages alone, also where they block their units of order."""
    producer = context.producer("orders")
    for n in range(20):
        producer.send_many({"text": f"{n}-{i}", "delay": "1 h", "group_id": f"g{n % 2 or ''}"} for i in range(4))
    one, at = subscriber(context), Batch("q")
    for _ in range(3):
        assert one.next_batch(at, Limits()) is None
    assert len(opened_files) == 20
    producer.send(text="of another unit", group_id="h")
    producer.send(text="behind one that is delayed", group_id="g")
    batch = one.next_batch(at, Limits())
    assert batch is not None
    assert batch.members[0].picks == Ranges.of((81, 81))
    assert len(opened_files) == 22
    one.close()


def test_client_searches_the_whole_backlog(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C7, C11: receive(0) returns None only when no message matches; delayed messages in front block no others (C12)."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", 3)
    producer = context.producer("orders")
    producer.send_many({"text": "late", "delay": "1 h"} for _ in range(10))
    for n in range(12):
        producer.send(text=str(n), properties={"even": n % 2 == 0})
    assert texts(context, "even", 7) == ["0", "2", "4", "6", "8", "10", None]
    assert texts(context, None, 7) == ["1", "3", "5", "7", "9", "11", None]


def test_pass_continues_with_unclaimed_picks(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, C6: a pass continues with the first pick that was not claimed."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", 8)
    context.producer("orders").send_many({"text": "late", "delay": "1 h"} for _ in range(5))
    for n in range(10):
        context.producer("orders").send_many([{"text": str(n)}, {"text": "late", "delay": "1 h"}], transaction=("t", n))
    one = subscriber(context)
    at, got = Batch("q"), []
    for _ in range(20):
        batch = one.next_batch(at, Limits(max_bytes=1))  # one message at a time, although several are found
        if batch is not None:
            at = batch
            got += batch.members[0].picks.numbers().tolist()
    assert got == [6 + 2 * n for n in range(10)]
    one.close()


# -- missing files -------------------------------------------------------------------------------------------------------
def test_loss_behind_a_lost_store_is_told_as_what_it_may_be() -> None:
    """C13, S9: messages were consumed and purged, and the store that knew it is gone: the error does not call them unconsumed."""
    with memory_domain("file", orders="queue") as root:
        with connect(root, housekeeping=False) as context:
            context.producer("orders").send_many([{"text": "a"}, {"text": "b"}])
            with context.consumer("orders", acknowledge="individual") as consumer:
                for _ in range(2):
                    message = consumer.receive(5)
                    assert message is not None
                    message.acknowledge()
            assert purge(domain_of(context).log("orders"), lambda *_: True).purged_files == 1
        shutil.rmtree(Path(root, "_jmsq", "store"))
        open_store(f"{root}/_jmsq/store").close()  # as `jmsq store create` does
        with connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
            with pytest.raises(DataLossError, match="consumed and purged, if the store was lost") as caught:
                consumer.receive(1)
            assert "not consumed" not in str(caught.value)


def test_missing_file_is_a_data_loss(context: Context) -> None:
    """C13: a plan raises DataLossError, or skips the messages if allowed; all others are delivered."""
    producer = context.producer("orders")
    for n in range(4):
        producer.send(text=str(n), priority=9)
    table = domain_of(context).log("orders")
    os.unlink(f"{table.storage.uri}/{table.refresh().member_files(0).files[1].path}")
    careful = subscriber(context, HIGH)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"orders/-/0: 1 message\(s\) .*failOnDataLoss"):
            careful.next_batch(Batch("careful"), Limits())
    careful.close()
    lenient = subscriber(context, HIGH, careful=False)
    batch = lenient.next_batch(Batch("lenient"), Limits())
    assert batch is not None
    assert batch.members[0].picks == Ranges.of((1, 1), (3, 4))
    lenient.close()
    assert [m.text for m in context.browser("orders", selector=HIGH)] == ["0", "2", "3"]


def test_files_replaced_by_compaction_are_found(context: Context) -> None:
    """C13: even if the old files are deleted at once, no message is lost and the units of order are known."""
    producer = context.producer("orders")
    for n in range(10):
        producer.send(text=str(n), priority=9, group_id=f"g{n}")
    stale = Domain(context.root).log("orders")
    old = [f.path for f in stale.refresh().member_files(0).files]
    assert compact(domain_of(context).log("orders")).compacted_files == 10
    for path in old:
        os.unlink(f"{stale.storage.uri}/{path}")
    found = scan(stale, 0, Ranges.of((1, 10)), Question(Selector.parse(HIGH)))
    assert (found.picks, found.gone) == (Ranges.of((1, 10)), Ranges.of())
    stale = Domain(context.root).log("orders")
    assert units_of(stale, 0, Ranges.of((3, 4))).first_of_units() == {"g2": 3, "g3": 4}


def test_table_is_verified_only_when_a_file_is_missing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C12, C13: to verify it costs several reads of its log, and a plan reads files of every member it holds. Messages that are
    in no file do not cost that either."""
    producer = context.producer("orders")
    for n in range(3):
        producer.send(text=str(n), group_id=f"g{n}")
    log = domain_of(context).log("orders")
    verified, verify = [], DeltaLog.verify

    def counting(self: DeltaLog) -> Snapshot:
        verified.append(self.name)
        return verify(self)

    monkeypatch.setattr(DeltaLog, "verify", counting)
    assert units_of(log, 0, Ranges.of((2, 9))).first_of_units() == {"g1": 2, "g2": 3}
    assert read_files(log, 0, Ranges.of((2, 9)), lambda file, part: [part])[1] == Ranges.of((4, 9))
    assert not verified
    files = log.refresh().member_files(0).files
    os.unlink(f"{log.storage.uri}/{files[1].path}")
    assert units_of(log, 0, Ranges.of((2, 9))).first_of_units() == {"g2": 3}
    assert verified
